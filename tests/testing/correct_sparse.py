"""Correct attention that gives many keys no weight at all, and attention whose heads hear each
other."""

from __future__ import annotations

import dataclasses

import torch
from tests.testing.correct import Plain
from torch import Tensor, nn

from polyattn import Capabilities, Inputs, Mask, kit

MASKS = frozenset({"causal", "padding", "dense", "segments", "window"})


def opened(mask: Mask, logits: Tensor) -> Tensor:
    """Bool (B, H, L, S): what the mask leaves open."""
    batch, heads, queries, keys = logits.shape
    keep = mask.keep(queries, keys, batch, heads, logits.device)
    return torch.ones_like(logits, dtype=torch.bool) if keep is None else keep.expand(logits.shape)


def plain_logits(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """By another way than the variants go."""
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    return torch.einsum("bhld,bhsd->bhls", q * scale, k)


class SquaredReLU(Plain):
    """max(logit, 0) ** 2 over the number of keys that may be seen: most weights are zero."""

    capabilities = Capabilities(
        masks=MASKS,
        grouped_heads="native",
        exactness="own kernel",
        linear_in_values=True,
        key_order_invariant=True,
        compiles="dynamic",
        dropout=True,
    )

    def seen(self, mask: Mask, logits: Tensor) -> Tensor:
        return opened(mask, logits)

    def weights(self, logits: Tensor, keep: Tensor | None) -> Tensor:
        assert keep is not None
        squares = logits.clamp(min=0).square() * keep
        return squares / keep.sum(-1, keepdim=True).clamp(min=1)

    def keep(self, mask: Mask, logits: Tensor) -> Tensor | None:
        return self.seen(mask, logits)

    def out(self, weights: Tensor, v: Tensor) -> Tensor:
        return weights @ v.to(weights.dtype)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        k, v = self.spread(k, q.shape[1]), self.spread(v, q.shape[1])
        logits = self.logits(q, k)
        weights = self.dropped(self.weights(logits, self.keep(mask, logits)))
        return self.out(weights, v).to(q.dtype)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        logits = plain_logits(q, k, self.scale_for(q.shape[-1]))
        keep = self.seen(mask, logits)
        squares = torch.where(keep & (logits > 0), logits**2, 0.0)
        v = v.repeat_interleave(q.shape[1] // v.shape[1], dim=1)
        out = torch.einsum("bhls,bhsv->bhlv", squares, v)
        return out / keep.sum(-1, keepdim=True).clamp(min=1)


class Sparsemax(SquaredReLU):
    """The logits projected on the simplex (Martins and Astudillo 2016): max(logit - tau, 0).

    The order of keys is not claimed not to matter: then keys that come twice are reported, which
    here are worth more.
    """

    capabilities = dataclasses.replace(
        SquaredReLU.capabilities, rows_sum_to_one=True, key_order_invariant=False
    )

    def weights(self, logits: Tensor, keep: Tensor | None) -> Tensor:
        assert keep is not None
        top = logits.masked_fill(~keep, -torch.inf).amax(-1, keepdim=True).detach()
        # Within 1 of the greatest: nothing below has a weight.
        level = logits - torch.where(top.isfinite(), top, 0.0)
        level = torch.where(keep, level, -2.0).clamp(min=-2.0)
        ordered = level.sort(-1, descending=True).values
        sums = ordered.cumsum(-1)
        rank = torch.arange(1, level.shape[-1] + 1, dtype=level.dtype, device=level.device)
        count = (1 + rank * ordered > sums).sum(-1, keepdim=True)
        tau = (sums.gather(-1, count - 1) - 1) / count
        return (level - tau).clamp(min=0) * keep

    def reference(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        """tau by bisection; then by the equation that it solves, for its gradient."""
        logits = plain_logits(q, k, self.scale_for(q.shape[-1]))
        keep = self.seen(mask, logits)
        with torch.no_grad():
            closed = torch.where(keep, logits.double(), -1e9)
            high = closed.amax(-1, keepdim=True)
            low = high - 1
            for _ in range(60):
                middle = (low + high) / 2
                beyond = (closed - middle).clamp(min=0).sum(-1, keepdim=True) > 1
                low, high = torch.where(beyond, middle, low), torch.where(beyond, high, middle)
            support = (closed > low) & keep
        count = support.sum(-1, keepdim=True).clamp(min=1)
        tau = (torch.where(support, logits, 0.0).sum(-1, keepdim=True) - 1) / count
        v = v.repeat_interleave(q.shape[1] // v.shape[1], dim=1)
        return torch.einsum("bhls,bhsv->bhlv", torch.where(support, logits - tau, 0.0), v)


class TalkingHeads(Plain):
    """Heads mixed before and after the softmax (Shazeer and others 2020)."""

    capabilities = Capabilities(
        masks={"causal", "padding"},
        exactness="own kernel",
        linear_in_values=True,
        compiles="dynamic",
    )

    def build(self) -> None:
        heads = self.require_sizes().heads
        self.before = nn.Parameter(torch.eye(heads) + 0.3 * torch.randn(heads, heads))
        self.after = nn.Parameter(torch.eye(heads) + 0.3 * torch.randn(heads, heads))

    def mixed(self, mix: Tensor, x: Tensor) -> Tensor:
        return torch.einsum("hg,bgls->bhls", mix.to(x.dtype), x)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        logits = self.mixed(self.before, self.logits(q, k))
        weights = self.mixed(self.after, kit.masked_softmax(logits, self.keep(mask, logits)))
        return (weights @ v.to(weights.dtype)).to(q.dtype)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        plain = plain_logits(q, k, self.scale_for(q.shape[-1]))
        logits = torch.tensordot(plain, self.before, ([1], [1])).movedim(-1, 1)
        keep = opened(mask, logits)
        level = torch.where(keep, logits, -torch.inf).detach().amax(-1, keepdim=True)
        odds = torch.where(keep, logits - level, 0.0).exp() * keep
        total = odds.sum(-1, keepdim=True)
        weights = odds / torch.where(total > 0, total, 1.0)
        weights = torch.tensordot(weights, self.after, ([1], [1])).movedim(-1, 1)
        return torch.einsum("bhls,bhsv->bhlv", weights, v)


SPARSE = (SquaredReLU, Sparsemax)
"""To be checked like any other; so is ``TalkingHeads``."""
