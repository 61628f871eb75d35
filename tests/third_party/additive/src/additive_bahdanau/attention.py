"""Additive attention: a small network of each head compares a query with a key.

    out_i = sum_j softmax_j(w . tanh(A q_i + B k_j)) v_j

Paper: Bahdanau et al., Neural Machine Translation by Jointly Learning to Align and Translate,
https://arxiv.org/abs/1409.0473.

Deviations:
- each head has a network of its own; the paper has one head.

Cost: ``width`` tanh for each of the L S pairs. Memory: as many numbers.

When not to use it: on long sequences; where a dot product does as well, it is far cheaper.
"""

from __future__ import annotations

import pydantic
import torch
from torch import Tensor, nn

from polyattn import Capabilities, Inputs, Mask, Options, SequenceAttention, kit


class Additive(SequenceAttention):
    """Each head compares by a network with one hidden layer."""

    capabilities = Capabilities(
        masks={"causal", "window", "padding", "segments", "dense"},
        state="key_value",
        exactness="own kernel",
        rows_sum_to_one=True,
        linear_in_values=True,
        key_order_invariant=True,
    )

    class Config(Options):
        """``width``: hidden units of the network of each head; None takes the head width."""

        width: int | None = pydantic.Field(default=None, ge=1)

    config: Config

    def build(self) -> None:
        sizes = self.require_sizes()
        width = self.config.width or sizes.head_dim
        self.query_net = nn.Parameter(torch.empty(sizes.heads, sizes.head_dim, width))
        self.key_net = nn.Parameter(torch.empty(sizes.heads, sizes.head_dim, width))
        self.out_net = nn.Parameter(torch.empty(sizes.heads, width))
        for net in (self.query_net, self.key_net):
            nn.init.normal_(net, std=sizes.head_dim**-0.5)
        nn.init.normal_(self.out_net, std=width**-0.5)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        exact = kit.accumulation_dtype(q.dtype)
        a, b, w = (net.to(exact) for net in (self.query_net, self.key_net, self.out_net))
        hidden = torch.tanh((q.to(exact) @ a)[..., :, None, :] + (k.to(exact) @ b)[..., None, :, :])
        logits = (hidden * w[:, None, None]).sum(-1)
        batch, heads, queries, keys = logits.shape
        weights = kit.masked_softmax(logits, mask.keep(queries, keys, batch, heads, q.device))
        return (weights @ v.to(exact)).to(q.dtype)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        queries = torch.einsum("bhld,hdw->bhlw", q, self.query_net)
        keys = torch.einsum("bhsd,hdw->bhsw", k, self.key_net)
        columns = [
            torch.einsum("bhlw,hw->bhl", (queries + keys[:, :, j, None]).tanh(), self.out_net)
            for j in range(k.shape[2])
        ]
        odds = torch.stack(columns, -1).exp()
        keep = mask.keep(q.shape[2], k.shape[2], q.shape[0], q.shape[1], q.device)
        odds = odds if keep is None else odds * keep
        total = odds.sum(-1, keepdim=True)
        return torch.einsum("bhls,bhsv->bhlv", odds / total.where(total > 0, 1.0), v)
