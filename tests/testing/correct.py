"""Attention written correctly, twice: the base that the broken ones change, and online softmax."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor
from torch.nn.functional import dropout

from polyattn import PARTS, Capabilities, Inputs, Mask, SequenceAttention, Support, kit

SOFTMAX = Capabilities(
    masks=PARTS,
    grouped_heads="native",
    state="key_value",
    rows_sum_to_one=True,
    linear_in_values=True,
    key_order_invariant=True,
    compiles="dynamic",
    devices={"cpu": Support(double_backward=True)},
)


class Plain(SequenceAttention):
    """Softmax attention in small steps, each of which a broken one may change."""

    capabilities = dataclasses.replace(SOFTMAX, dropout=True)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        k, v = self.spread(k, q.shape[1]), self.spread(v, q.shape[1])
        logits = self.logits(q, k)
        bias = self.bias(mask, logits)
        if bias is not None:
            logits = logits + bias
        weights = self.dropped(self.weights(logits, self.keep(mask, logits)))
        return self.out(weights.to(v.dtype), v).to(q.dtype)

    def spread(self, x: Tensor, heads: int) -> Tensor:
        return kit.repeat_heads(x, heads)

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        exact = kit.accumulation_dtype(q.dtype)
        return (q.to(exact) * self.scale_for(q.shape[-1])) @ k.to(exact).mT

    def bias(self, mask: Mask, logits: Tensor) -> Tensor | None:
        queries, keys = logits.shape[2:]
        return mask.logit_bias(queries, keys, dtype=logits.dtype, device=logits.device)

    def keep(self, mask: Mask, logits: Tensor) -> Tensor | None:
        batch, heads, queries, keys = logits.shape
        return mask.keep(queries, keys, batch, heads, logits.device)

    def weights(self, logits: Tensor, keep: Tensor | None) -> Tensor:
        return kit.masked_softmax(logits, keep)

    def dropped(self, weights: Tensor) -> Tensor:
        return dropout(weights, self.dropout_p) if self.dropout_p else weights

    def out(self, weights: Tensor, v: Tensor) -> Tensor:
        return weights @ v


class Online(SequenceAttention):
    """The same by running maximum and sum over blocks of keys."""

    # The number of its blocks depends on the length: one graph each.
    capabilities = dataclasses.replace(SOFTMAX, compiles="no")
    block = 16

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        batch, heads, queries, width = q.shape
        shape = (batch, heads, queries, k.shape[2])
        exact = kit.accumulation_dtype(q.dtype)
        keep = mask.keep(*shape[2:], batch, heads, q.device)
        bias = mask.logit_bias(*shape[2:], dtype=exact, device=q.device)
        keep = torch.ones(shape, dtype=torch.bool) if keep is None else keep.expand(shape)
        bias = q.new_zeros(shape, dtype=exact) if bias is None else bias.expand(shape)
        scaled = q.to(exact) * self.scale_for(width)
        k, v = (kit.repeat_heads(x, heads).to(exact) for x in (k, v))
        top = scaled.new_full((*shape[:3], 1), -torch.inf)
        total, out = torch.zeros_like(top), scaled.new_zeros(*shape[:3], v.shape[3])
        for start in range(0, shape[3], self.block):
            block = slice(start, start + self.block)
            logits = scaled @ k[:, :, block].mT + bias[..., block]
            logits = logits.masked_fill(~keep[..., block], -torch.inf)
            higher = torch.maximum(top, logits.detach().amax(-1, keepdim=True))
            level = torch.where(higher == -torch.inf, 0.0, higher)
            shrink, odds = (top - level).exp(), (logits - level).exp()
            total = total * shrink + odds.sum(-1, keepdim=True)
            out = out * shrink + odds @ v[:, :, block]
            top = higher
        return kit.safe_divide(out, total).to(q.dtype)
