"""Softmax attention by kernels for CUDA: xformers' (``xformers``), FlexAttention (``flex``).

    out_i = sum_j softmax_j(scale * q_i . k_j + b_ij) v_j,     scale = 1/sqrt(D)

over the keys j that query i may see.

Paper: Rabe and Staats, Self-attention does not need O(n^2) memory,
https://arxiv.org/abs/2112.05682 (``xformers``); Dong et al., Flex Attention,
https://arxiv.org/abs/2412.05496 (``flex``).

Deviations:
- a query that sees no key gives zeros: its row is opened for the kernel of ``xformers``, which
  knows no empty row, and the output is zeroed;
- ``flex`` runs compiled or not at all: its eager form holds all pairs.

Cost: quadratic in the length: 4 H D operations per visible pair, in blocks: ``flex`` leaves out
whole blocks that a mask closes, ``xformers`` those of causal masks, windows and documents.
Memory: the output; ``xformers`` holds all other masks as a tensor over (L, S).

When not to use it: on any other device than CUDA, where both refuse. Neither kernel has been run
so far: what a ``Mask`` becomes is proven on the CPU, by writing it out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from polyattn import (
    PARTS,
    Call,
    Capabilities,
    Inputs,
    Mask,
    Refusal,
    SequenceAttention,
    Support,
    Unsupported,
)

if TYPE_CHECKING:
    from xformers.ops.fmha.attn_bias import AttentionBias

__all__ = ["Flex", "Xformers", "flex_mods", "xformers_bias"]

Mod = Callable[..., Tensor]

_HALF = {torch.float16, torch.bfloat16}


class Xformers(SequenceAttention):
    """``xformers.ops.memory_efficient_attention``, by whichever of its kernels takes the call."""

    capabilities = Capabilities(
        masks=PARTS,
        value_width=False,
        dropout=True,
        devices={"cuda": Support(dtypes=_HALF)},
        exactness="exact",
        rows_sum_to_one=True,
        linear_in_values=True,
        key_order_invariant=True,
    )

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        # Imported by a call: the import alone warns where there is no CUDA.
        from xformers.ops import memory_efficient_attention

        bias, rows = xformers_bias(mask, q, k.shape[2])
        packed = bias is not None and not isinstance(bias, Tensor) and mask.key_ids is not None
        layers = [x.transpose(1, 2) for x in (q, k, v)]
        if packed:
            # One sequence: the documents of all samples, one after the other.
            layers = [x.flatten(0, 1)[None] for x in layers]
        try:
            out: Tensor = memory_efficient_attention(
                *layers, attn_bias=bias, p=self.dropout_p, scale=self.scale_for(q.shape[3])
            )
        except NotImplementedError as error:
            refusal = Refusal("kernel", "none", "what a kernel of xformers takes", str(error))
            raise Unsupported(self.label, (refusal,)) from error
        out = out.view(q.shape[0], q.shape[2], *out.shape[2:]).transpose(1, 2)
        return out if rows is None else out.masked_fill(~rows, 0.0)


def xformers_bias(
    mask: Mask, q: Tensor, keys: int
) -> tuple[AttentionBias | Tensor | None, Tensor | None]:
    """A mask as xformers' bias for q (B, H, L, D) over so many keys, and the rows that see a key.

    Causal masks, windows and documents become its objects (documents for the samples laid end to
    end), all others a tensor (B, H, L, S), in which a row that sees nothing is open. The rows:
    bool, broadcasts to (B, H, L, 1); None where all of them do.
    """
    from xformers.ops.fmha import attn_bias as known

    queries = q.shape[2]
    if mask.is_full:
        return None, None
    if mask.parts <= {"causal", "window"} and not mask.prefix:
        causal = mask.prefix is not None
        if mask.span is None:
            same = known.LowerTriangularMask, known.LowerTriangularFromBottomRightMask
            return same[queries != keys](), None
        left, right = (keys if side is None else side for side in mask.span)
        return known.LocalAttentionFromBottomRightMask(left, 0 if causal else right), None
    if _is_packed(mask, queries, keys):
        assert mask.document_lengths is not None
        lengths = [length for row in mask.document_lengths for length in row if length]
        blocks = known.BlockDiagonalMask.from_seqlens(lengths)
        return (blocks if mask.prefix is None else blocks.make_causal()), None
    return _as_tensor(mask, q, keys)


def _is_packed(mask: Mask, queries: int, keys: int) -> bool:
    """Documents whose lengths are known on the host, with causal at most."""
    alone = mask.parts <= {"causal", "segments"} and not mask.prefix and queries == keys
    return alone and mask.document_lengths is not None


def _as_tensor(mask: Mask, q: Tensor, keys: int) -> tuple[Tensor, Tensor | None]:
    batch, heads, queries, _ = q.shape
    # Rows of a multiple of 8 numbers, as the kernels read them.
    room = q.new_zeros(batch, heads, queries, keys + -keys % 8)[..., :keys]
    bias = mask.logit_bias(queries, keys, dtype=q.dtype, device=q.device)
    bias = room if bias is None else room + bias
    keep = mask.keep(queries, keys, batch, heads, q.device)
    if keep is None:
        return bias, None
    rows = keep.any(-1, keepdim=True)
    bias = bias.masked_fill(~keep, -torch.inf).masked_fill(~rows, 0.0)
    return F.pad(bias, (0, -keys % 8))[..., :keys], rows


class Flex(SequenceAttention):
    """PyTorch's FlexAttention, compiled: the mask as a block mask, biases as a score function."""

    capabilities = Capabilities(
        masks=PARTS,
        grouped_heads="native",
        devices={"cuda": Support(dtypes=_HALF | {torch.float32})},
        exactness="exact",
        rows_sum_to_one=True,
        linear_in_values=True,
        key_order_invariant=True,
    )

    def refuse(self, call: Call) -> Iterable[Refusal]:
        if call.bias_grad:
            way_out = "detach the bias or ask for sdpa or dense"
            yield Refusal("bias", "requires grad", "a bias without gradients", way_out)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        from torch.nn.attention.flex_attention import create_block_mask

        batch, heads, queries, _ = q.shape
        keys = k.shape[2]
        mask_mod, score_mod = flex_mods(mask, queries, keys)
        blocks = None
        if mask_mod is not None:
            blocks = create_block_mask(mask_mod, batch, heads, queries, keys, device=q.device)
        out: Tensor = _compiled()(
            q,
            k,
            v,
            score_mod=score_mod,
            block_mask=blocks,
            scale=self.scale_for(q.shape[3]),
            enable_gqa=q.shape[1] != k.shape[1],
        )
        return out


@cache
def _compiled() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    # Where it does not compile, it has to raise: the eager form holds all pairs.
    return torch.compile(flex_attention, fullgraph=True)


def flex_mods(mask: Mask, queries: int, keys: int) -> tuple[Mod | None, Mod | None]:
    """A mask as FlexAttention's pair of functions: (b, h, i, j) -> bool, and (score, b, h, i, j).

    None where the mask closes nothing, or adds nothing.
    """
    offset = keys - queries
    closing = [*_ordered(mask, offset), *_looked_up(mask, queries)]
    adding = [_entry(values) for values in mask.biases]
    if mask.slopes is not None:
        slopes = mask.slopes
        adding.append(lambda b, h, i, j: -slopes[h] * (i + offset - j).abs())

    def visible(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        answer = closing[0](b, h, i, j)
        for term in closing[1:]:
            answer = answer & term(b, h, i, j)
        return answer

    def scored(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        for term in adding:
            score = score + term(b, h, i, j)
        return score

    return visible if closing else None, scored if adding else None


def _ordered(mask: Mask, offset: int) -> Iterable[Mod]:
    """Causal and window; query i sits at position i + offset."""
    if mask.prefix is not None:
        prefix = mask.prefix
        yield lambda b, h, i, j: (j <= i + offset) | (j < prefix)
    left, right = mask.span or (None, None)
    if left is not None:
        yield lambda b, h, i, j: i + offset - j <= left
    if right is not None:
        yield lambda b, h, i, j: j - i - offset <= right


def _looked_up(mask: Mask, queries: int) -> Iterable[Mod]:
    """What tensors and functions close."""
    if mask.real is not None:
        real = mask.real
        yield lambda b, h, i, j: real[b, j]
    ids = mask.segment_ids(queries)
    if ids is not None:
        of_queries, of_keys = ids
        yield lambda b, h, i, j: of_queries[b, i] == of_keys[b, j]
    yield from (_entry(kept) for kept in mask.kept)
    yield from (_entry(values != -torch.inf) for values in mask.biases)
    yield from mask.predicates


def _entry(values: Tensor) -> Mod:
    """The number for (b, h, i, j), out of (L, S) or (B, H, L, S) where any size may be 1."""
    table = values if values.ndim == 4 else values[None, None]
    # An index times zero where there is one entry for all.
    b_, h_, i_, j_ = (int(size > 1) for size in table.shape)
    return lambda b, h, i, j: table[b * b_, h * h_, i * i_, j * j_]
