"""Correct attention of other kinds: its own kernel, random features, pooled keys, a parameter."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from tests.testing.correct import SOFTMAX, Plain
from tests.testing.correct_maps import MAPS
from tests.testing.correct_sparse import SPARSE, TalkingHeads
from torch import Tensor, nn

from polyattn import (
    Capabilities,
    Inputs,
    Mask,
    Options,
    RecurrentState,
    SequenceAttention,
    Sizes,
    State,
    kit,
)


class Featured(SequenceAttention):
    """Linear attention with exp for negative entries, as a masked quadratic form: right."""

    capabilities = Capabilities(
        masks={"causal", "padding"},
        grouped_heads="native",
        state="recurrent",
        exactness="own kernel",
        rows_sum_to_one=True,
        linear_in_values=True,
        key_order_invariant=True,
    )

    class Config(Options):
        """No options."""

    def feature(self, x: Tensor) -> Tensor:
        return torch.where(x > 0, x + 1, x.clamp(max=0).exp())

    def asked(self, q: Tensor) -> Tensor:
        """The features of queries: a factor of a query cancels, so none is too small."""
        return self.feature(q - q.amax(-1, keepdim=True).clamp(max=0))

    def normalised(self, out: Tensor, total: Tensor) -> Tensor:
        return kit.safe_divide(out, total)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        exact, heads = kit.accumulation_dtype(q.dtype), q.shape[1]
        k, v = kit.repeat_heads(k, heads).to(exact), kit.repeat_heads(v, heads).to(exact)
        weights = self.asked(q.to(exact)) @ self.feature(k).mT
        keep = mask.keep(q.shape[2], k.shape[2], q.shape[0], heads)
        weights = weights if keep is None else weights * keep
        return self.normalised(weights @ v, weights.sum(-1, keepdim=True)).to(q.dtype)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        heads = q.shape[1]
        k, v = kit.repeat_heads(k, heads), kit.repeat_heads(v, heads)
        q, k = (torch.where(x > 0, x + 1, x.clamp(max=0).exp()) for x in (q, k))
        weights = torch.einsum("bhld,bhsd->bhls", q, k)
        keep = mask.keep(q.shape[2], k.shape[2], q.shape[0], heads)
        weights = weights if keep is None else weights * keep
        total = weights.sum(-1, keepdim=True)
        return torch.einsum("bhls,bhsv->bhlv", weights / torch.where(total > 0, total, 1.0), v)

    def start(
        self, batch: int, sizes: Sizes | None, *, dtype: torch.dtype, device: torch.device
    ) -> State:
        sizes = sizes or self.require_sizes()
        none = torch.empty(0, dtype=kit.accumulation_dtype(dtype))
        s = none.new_zeros(batch, sizes.kv_heads, sizes.head_dim, sizes.value_dim)
        return RecurrentState(0, {"s": s, "z": s[..., :1].clone()})

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, state: Any, mask: Mask, inputs: Inputs
    ) -> tuple[Tensor, State]:
        s, z = state.tensors["s"], state.tensors["z"]
        outs = []
        for i in range(q.shape[2]):
            mapped = self.feature(k[:, :, i : i + 1].to(s.dtype)).mT
            if mask.real is not None:
                mapped = mapped * mask.real[:, None, i : i + 1, None]
            s, z = s + mapped @ v[:, :, i : i + 1].to(s.dtype), self.summed(z, mapped)
            asked = self.asked(q[:, :, i : i + 1].to(s.dtype))
            all_s, all_z = (kit.repeat_heads(x, q.shape[1]) for x in (s, z))
            outs.append(self.normalised(asked @ all_s, asked @ all_z))
        tensors = {"s": s, "z": z}
        return torch.cat(outs, dim=2).to(q.dtype), state.advance(q.shape[2], tensors)

    def summed(self, z: Tensor, mapped: Tensor) -> Tensor:
        return z + mapped


class Random(SequenceAttention):
    """Softmax by positive random features: right, and better the more of them there are."""

    capabilities = Capabilities(
        masks={"padding"},
        exactness="approximate",
        limit="infinitely many features",
        improves_with="features",
        random_features="fixed",
        linear_in_values=True,
        key_order_invariant=True,
    )

    class Config(SequenceAttention.Config):
        """``features``: how many directions are drawn."""

        features: int = 64

    def build(self) -> None:
        self.register_buffer("directions", self.drawn(self.config.features))

    def drawn(self, count: int) -> Tensor:
        return torch.randn(count, self.require_sizes().head_dim)

    def half_square(self, x: Tensor) -> Tensor:
        return x.square().sum(-1, keepdim=True) / 2

    def feature(self, x: Tensor) -> Tensor:
        x = x.to(kit.accumulation_dtype(x.dtype)) * self.scale_for(x.shape[-1]) ** 0.5
        directions = self.directions
        assert isinstance(directions, Tensor)
        return (x @ directions.to(x.dtype).mT - self.half_square(x)).exp()

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        weights = self.feature(q) @ self.feature(k).mT
        if mask.real is not None:
            weights = weights * mask.real[:, None, None]
        out = kit.safe_divide(weights @ v.to(weights.dtype), weights.sum(-1, keepdim=True))
        return out.to(q.dtype)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        weights = torch.einsum("bhlm,bhsm->bhls", self.feature(q), self.feature(k))
        keep = mask.keep(q.shape[2], k.shape[2], q.shape[0], q.shape[1])
        weights = weights if keep is None else weights * keep
        weights = kit.safe_divide(weights, weights.sum(-1, keepdim=True)).to(v.dtype)
        return torch.einsum("bhls,bhsv->bhlv", weights, v)


class Pooled(SequenceAttention):
    """Neighbouring keys and values averaged into ``rank`` of them; exact where rank = S: right."""

    capabilities = Capabilities(
        exactness="approximate",
        limit="rank = S",
        rows_sum_to_one=True,
        linear_in_values=True,
    )

    class Config(SequenceAttention.Config):
        """``rank``: how many averages there are."""

        rank: int = 4

    @classmethod
    def at_limit(cls, config: Any, sizes: Sizes, keys: int) -> tuple[Pooled, float] | None:
        return cls(cls.Config(**{**dict(config), "rank": keys}), sizes), 0.0

    def place(self, keys: int) -> Tensor:
        """The average that each key belongs to: (S,)."""
        return torch.arange(keys) * min(self.config.rank, keys) // keys

    def logit_scale(self, width: int) -> float:
        return self.scale_for(width)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        exact = kit.accumulation_dtype(q.dtype)
        member = torch.nn.functional.one_hot(self.place(k.shape[2])).to(exact)
        mean = (member / member.sum(0)).mT
        k, v = mean @ k.to(exact), mean @ v.to(exact)
        weights = (q.to(exact) * self.logit_scale(q.shape[-1]) @ k.mT).softmax(-1)
        return (weights @ v).to(q.dtype)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        place = self.place(k.shape[2])
        groups = range(int(place[-1]) + 1)
        k, v = (torch.stack([x[:, :, place == i].mean(2) for i in groups], 2) for x in (k, v))
        logits = torch.einsum("bhld,bhsd->bhls", q, k) * self.logit_scale(q.shape[-1])
        return torch.einsum("bhls,bhsv->bhlv", logits.softmax(-1), v)


class Tempered(Plain):
    """Softmax attention with a temperature that is learned: right, and has a parameter."""

    capabilities = dataclasses.replace(SOFTMAX, exactness="own kernel", dropout=True)

    def build(self) -> None:
        self.temperature = nn.Parameter(1 + torch.rand(()))

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return super().logits(q, k) * self.temperature

    def reference(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        return super().reference(q * self.temperature, k, v, mask, inputs)


def _made() -> type[Plain]:
    class Made(Plain):
        """Pickle does not find a class that a function made: that is not the attention's fault."""

    return Made


class Gated(Plain):
    """Of two heads' worth of temperatures one rests at random in each step of training: right."""

    def build(self) -> None:
        self.warm = nn.Parameter(torch.ones(()))
        self.cold = nn.Parameter(torch.ones(()))

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        warm = not self.training or bool(torch.rand(()) < 0.5)
        factor = self.warm if warm else self.cold
        return super().logits(q, k) * factor.to(q.dtype)


KINDS = (Featured, Random, Pooled, Tempered, Gated, *SPARSE, TalkingHeads, *MAPS, _made())
"""All of them, to be checked like any other."""
