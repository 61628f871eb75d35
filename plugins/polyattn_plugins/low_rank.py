"""Linformer: keys and values projected along the length, from S positions to ``rank``.

    out_i = softmax(scale * q_i (E k)^T) (F v),     E, F learned, (rank, max_length)

Paper: Wang et al., Linformer: Self-Attention with Linear Complexity,
https://arxiv.org/abs/2006.04768.

Deviations:
- E and F are shared by all heads (the paper's headwise sharing);
- they start as N(0, 1/max_length), so that a projection of max_length keys has a key's variance;
- a shorter sequence uses their first columns; under padding the n-th *real* key uses column n, so
  where the padding lies changes nothing.

Cost: linear in the length: 4 H D rank operations per query, and 4 H D rank per key. Memory: the
(L, rank) weights.

When not to use it: for anything causal, since every projected key mixes all positions; for lengths
that are not bounded beforehand; where the result must not depend on the order of the keys.
"""

from __future__ import annotations

import math

import pydantic
import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

from polyattn import (
    Capabilities,
    ConfigError,
    Inputs,
    Lengths,
    Mask,
    SequenceAttention,
    Sizes,
    Support,
    kit,
)

__all__ = ["Linformer"]


class Linformer(SequenceAttention):
    """Attention over ``rank`` learned mixtures of the positions, up to ``Sizes.max_length``."""

    capabilities = Capabilities(
        masks={"padding"},
        dropout=True,
        lengths=Lengths(up_to="max_length"),
        exactness="approximate",
        limit="rank = S, E and F the identity",
        linear_memory=True,
        linear_in_values=True,
        devices={
            place: Support(double_backward=True, forward_ad=True) for place in ("cpu", "cuda")
        },
        compiles="dynamic",
        exports="dynamic",
    )

    class Config(SequenceAttention.Config):
        """``rank``: how many mixtures of positions the queries see."""

        rank: int = pydantic.Field(default=64, ge=1, lt=2**31)

    config: Config

    @classmethod
    def examples(cls) -> tuple[Config, ...]:
        return (cls.Config(rank=8), cls.Config())

    @classmethod
    def at_limit(cls, config: Config, sizes: Sizes, keys: int) -> tuple[Linformer, float]:
        """Rank S, each key projected onto itself."""
        exact = cls(cls.Config(**{**dict(config), "rank": keys}), sizes)
        with torch.no_grad():
            for projection in (exact.key_projection, exact.value_projection):
                nn.init.eye_(projection)
        return exact, 0.0

    def build(self) -> None:
        longest = self.require_sizes().max_length
        if longest is None:
            raise ConfigError(
                "Linformer learns a projection for each position: expected "
                "sizes=polyattn.Sizes(..., max_length=...), got max_length=None"
            )
        shape, std = (self.config.rank, longest), 1 / math.sqrt(longest)
        self.key_projection = nn.Parameter(torch.randn(shape) * std)
        self.value_projection = nn.Parameter(torch.randn(shape) * std)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        exact = kit.accumulation_dtype(q.dtype)
        k = self._columns(self.key_projection, k, mask.real).to(exact) @ k.to(exact)
        v = self._columns(self.value_projection, v, mask.real).to(exact) @ v.to(exact)
        logits = (q.to(exact) * self.scale_for(q.shape[-1])) @ k.mT
        weights = kit.masked_softmax(logits)
        if self.dropout_p:
            weights = dropout(weights, self.dropout_p)
        return (weights @ v).to(q.dtype)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        outs = []
        for b in range(q.shape[0]):
            every = torch.ones(k.shape[2], dtype=torch.bool, device=k.device)
            real = every if mask.real is None else mask.real.expand(q.shape[0], -1)[b]
            count = int(real.sum())
            keys, values = k[b][:, real], v[b][:, real]
            e = self.key_projection[:, :count].to(k.dtype)
            f = self.value_projection[:, :count].to(v.dtype)
            mixed_keys = torch.einsum("rs,hsd->hrd", e, keys)
            mixed_values = torch.einsum("rs,hsv->hrv", f, values)
            logits = self.scale_for(q.shape[-1]) * torch.einsum("hld,hrd->hlr", q[b], mixed_keys)
            odds = (logits - logits.detach().amax(-1, keepdim=True)).exp()
            outs.append(
                torch.einsum("hlr,hrv->hlv", odds / odds.sum(-1, keepdim=True), mixed_values)
            )
        return torch.stack(outs)

    @staticmethod
    def _columns(projection: Tensor, like: Tensor, real: Tensor | None) -> Tensor:
        """The projection of each key: (rank, S), or (B, 1, rank, S) under padding."""
        if real is None:
            return projection[:, : like.shape[2]]
        place = (real.cumsum(dim=1) - 1).clamp(min=0)
        columns = projection.mT[place] * real[..., None]
        return columns.mT[:, None]
