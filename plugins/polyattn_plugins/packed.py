"""Softmax attention within packed documents: the specialist of ``softmax`` for segments.

    out_i = sum_j softmax_j(scale * q_i . k_j) v_j
    over the keys j of the query's own document, all or causally,  scale = 1/sqrt(D)

Paper: Krell et al., Efficient sequence packing without cross-contamination,
https://arxiv.org/abs/2107.02027 (its block-diagonal mask); the kernel is PyTorch's flash kernel.

Deviations:
- the paper's mask is a tensor over all pairs; here the documents are computed one by one, and no
  pair of two documents is;
- documents need not be contiguous: ids may come in any order;
- a query whose document has no key gives zeros.

Cost: quadratic in the length: 4 H D operations for each pair of one document, thus linear where
the documents have a bound. Memory: the output, and a mask of the longest document where padding
or L < S makes its causality irregular.

When not to use it: by name, hardly ever: ask for ``softmax``, and it is used where it fits; for
very many documents of a few tokens, each of which is a call of the kernel.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from polyattn import Call, Capabilities, Inputs, Mask, Refusal, SequenceAttention, Support
from polyattn_plugins.packed_kernel import packed_attention

__all__ = ["Packed"]


class Packed(SequenceAttention):
    """Softmax attention under a mask with segments, at the cost of their own pairs."""

    capabilities = Capabilities(
        masks={"causal", "padding", "segments"},
        requires={"segments"},
        value_width=False,
        devices={"cpu": Support()},
        exactness="exact",
        rows_sum_to_one=True,
        linear_in_values=True,
        key_order_invariant=True,
        compiles="dynamic",
        exports="dynamic",
    )

    def refuse(self, call: Call) -> Iterator[Refusal]:
        if call.prefix:
            way_out = "use Mask.causal() without a prefix, or dense or sdpa"
            yield Refusal("causal prefix", call.prefix, "0", way_out)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        ids = mask.segment_ids(q.shape[2])
        assert ids is not None
        causal, scale = mask.prefix is not None, self.scale_for(q.shape[3])
        out: Tensor = packed_attention(q, k, v, *ids, mask.real, causal, scale)[0]
        return out
