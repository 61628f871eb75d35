"""Softmax attention whose logits are kept within bounds, each in a way that can be switched on.

    out_i = sum_j w_ij v_j
    w_ij = exp(y_ij + b_ij) / (sum_j exp(y_ij + b_ij) [+ exp(sink)])
    y_ij = cap(s x_ij),    x_ij = q_i . k_j  [(x_ij - mean_i) / sqrt(variance_i + 1e-5)]
    cap(y) = y  [c tanh(y / c)]

over the keys j that query i may see, as the mean and the variance are. What stands in brackets is
switched on by ``sink``, ``normalise`` and ``softcap``. s = exp(log_scale) and sink are learned, one
of each head.

Paper: Gemma 2, which caps logits, https://arxiv.org/abs/2408.00118; Xiao et al., Efficient
Streaming Language Models with Attention Sinks, https://arxiv.org/abs/2309.17453, whose learned
sink gpt-oss has in each head; Richter and Wattenhofer, Normalized Attention Without Probability
Cage, https://arxiv.org/abs/2005.09561.

Deviations:
- the paper of ``normalise`` puts the normalisation in the place of the softmax; here the softmax
  follows it;
- where all logits of a row are the same, they are normalised to 0: 1e-5 is added to the variance;
- bias and alibi are added behind the cap, as Gemma 2 adds its mask, and are not normalised;
- s is learned, and starts from 1/sqrt(D), under ``normalise`` from 1; a sink starts from 0.

Cost: quadratic in the length: 4 H D operations per pair of query and key, and about five passes
over the logits for each switch. Memory: the (L, S) logits, a few times with gradients.

When not to use it: where logits stay small by themselves, as no fused kernel is used; with a sink,
where a row must be an average of values.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pydantic
import torch
from torch import Tensor, nn

from polyattn import PARTS, Capabilities, Inputs, Mask, SequenceAttention, Support, kit
from polyattn_plugins.logits_kernel import by_group, weighted

__all__ = ["StabilisedSoftmax"]


class StabilisedSoftmax(SequenceAttention):
    """Softmax attention with a learned scale, normalised or capped logits, and a sink."""

    capabilities = Capabilities(
        masks=PARTS,
        grouped_heads="native",
        dropout=True,
        state="key_value",
        exactness="own kernel",
        rows_sum_to_one=True,
        linear_in_values=True,
        key_order_invariant=True,
        devices={
            place: Support(double_backward=True, forward_ad=True) for place in ("cpu", "cuda")
        },
        compiles="dynamic",
        exports="dynamic",
    )

    class Config(SequenceAttention.Config):
        """``scale``: where the learned scale of each head starts. ``normalise``: zero mean and unit
        variance over the keys that a query sees. ``softcap``: the bound c of the logits.
        ``sink``: a learned logit of each head takes part in the sum and has no value."""

        normalise: bool = False
        softcap: float | None = pydantic.Field(default=None, gt=0)
        sink: bool = False

    config: Config

    @classmethod
    def examples(cls) -> tuple[Config, ...]:
        return cls.Config(normalise=True, sink=True), cls.Config(softcap=5.0)

    @classmethod
    def capabilities_for(cls, config: Any) -> Capabilities:
        return replace(cls.capabilities, rows_sum_to_one=not config.sink)

    def build(self) -> None:
        sizes, config = self.require_sizes(), self.config
        usual = 1.0 if config.normalise else self.scale_for(sizes.head_dim)
        start = math.log(config.scale or usual)
        self.log_scale = nn.Parameter(torch.full((sizes.heads,), start))
        self.sink = nn.Parameter(torch.zeros(sizes.heads)) if config.sink else None

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        exact = kit.accumulation_dtype(q.dtype)
        with kit.as_given(q):
            logits = by_group(q.to(exact), k.to(exact).mT)
            if self.config.normalise:
                logits = _normalised(logits, mask)
            logits = logits * self.log_scale.to(exact).exp()[:, None, None]
            if self.config.softcap is not None:
                logits = (logits / self.config.softcap).tanh() * self.config.softcap
            return weighted(logits, v, mask, self.dropout_p, self.sink).to(q.dtype)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        batch, heads, queries, keys = *q.shape[:3], k.shape[2]
        k, v = (x.repeat_interleave(heads // x.shape[1], dim=1) for x in (k, v))
        logits = torch.einsum("bhld,bhsd->bhls", q, k)
        keep = mask.keep(queries, keys, batch, heads, q.device)
        seen = torch.ones_like(logits) if keep is None else keep.to(q.dtype).expand_as(logits)
        if self.config.normalise:
            share = seen / seen.sum(-1, keepdim=True).clamp(min=1)
            logits = logits - (share * logits).sum(-1, keepdim=True)
            logits = logits / ((share * logits**2).sum(-1, keepdim=True) + 1e-5) ** 0.5
        logits = torch.einsum("bhls,h->bhls", logits, torch.exp(self.log_scale.to(q.dtype)))
        if self.config.softcap is not None:
            logits = self.config.softcap * torch.tanh(logits / self.config.softcap)
        bias = mask.logit_bias(queries, keys, dtype=logits.dtype, device=q.device)
        logits = logits if bias is None else logits + bias
        sink = None if self.sink is None else self.sink.to(q.dtype)[:, None, None]
        level = torch.where(seen > 0, logits, -torch.inf).detach().amax(-1, keepdim=True)
        level = level if sink is None else torch.maximum(level, sink.detach())
        odds = torch.where(seen > 0, logits - level, 0.0).exp() * seen
        total = odds.sum(-1, keepdim=True)
        total = total if sink is None else total + (sink - level).exp()
        return torch.einsum("bhls,bhsv->bhlv", odds / torch.where(total > 0, total, 1.0), v)


def _normalised(logits: Tensor, mask: Mask) -> Tensor:
    """Logits (B, H, L, S) of zero mean and unit variance over the keys that a query may see."""
    batch, heads, queries, keys = logits.shape
    keep = mask.keep(queries, keys, batch, heads, logits.device)
    seen = torch.ones_like(logits) if keep is None else keep.to(logits.dtype).expand_as(logits)
    share = kit.safe_divide(seen, seen.sum(-1, keepdim=True))
    for _ in range(2):
        # Twice: large logits leave a rounding of their mean, which is all that equal ones have.
        logits = logits - (logits * share).sum(-1, keepdim=True)
    variance = (logits.square() * share).sum(-1, keepdim=True)
    return logits * (variance + 1e-5).rsqrt()
