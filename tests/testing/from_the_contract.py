"""Variants written from the contract alone, by an author who has not read the checks."""

from __future__ import annotations

from typing import Any, Self

import pydantic
import torch
from torch import Tensor, nn
from torch.nn import functional

from polyattn import (
    Call,
    Capabilities,
    FeatureMapAttention,
    FeatureMapCapabilities,
    Inputs,
    Mask,
    Options,
    RecurrentState,
    Refusal,
    SequenceAttention,
    Sizes,
    State,
    Support,
    kit,
)

PLAIN = Support(double_backward=True, forward_ad=True)
"""What plain torch operations do."""


class LandmarkMeans(SequenceAttention):
    """Softmax over m means of neighbouring real keys, each counted as often as it has members.

    Of n real keys the one with r real keys before it belongs to landmark floor(r m' / n), where
    m' = min(m, n). With c_l members of landmark l, their mean key a_l and mean value b_l:
    out_i = sum_l softmax_l(scale q_i . a_l + log c_l) b_l. Exact where m >= n.
    """

    capabilities = Capabilities(
        masks={"padding"},
        grouped_heads="native",
        dropout=True,
        devices={"cpu": PLAIN, "cuda": PLAIN},
        exactness="approximate",
        limit="as many landmarks as keys",
        linear_memory=True,
        rows_sum_to_one=True,
        linear_in_values=True,
        nan_blind=True,
        compiles="dynamic",
        exports="dynamic",
    )

    class Config(SequenceAttention.Config):
        """``landmarks``: m, at most so many means."""

        landmarks: int = pydantic.Field(default=4, ge=1)

    config: Config

    @classmethod
    def examples(cls) -> tuple[Config, ...]:
        return cls.Config(), cls.Config(landmarks=1, scale=0.5)

    @classmethod
    def at_limit(cls, config: Any, sizes: Sizes, keys: int) -> tuple[Self, float]:
        return cls(config.model_copy(update={"landmarks": keys}), sizes), 0.0

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        given, exact = q.dtype, kit.accumulation_dtype(q.dtype)
        q, k, v = q.to(exact), k.to(exact), v.to(exact)
        real = mask.real
        if real is None:
            real = torch.ones(1, k.shape[2], dtype=torch.bool, device=k.device)
        else:
            closed = ~real[:, None, :, None]
            k, v = k.masked_fill(closed, 0.0), v.masked_fill(closed, 0.0)
        members = self._members(real).to(exact)
        counts = members.sum(-1, keepdim=True)
        pool = kit.safe_divide(members, counts)[:, None]
        landmarks = kit.repeat_heads(pool @ k, q.shape[1])
        values = kit.repeat_heads(pool @ v, q.shape[1])
        logits = self.scale_for(q.shape[-1]) * q @ landmarks.mT
        logits = logits + counts.clamp(min=1).log().mT[:, None]
        weights = kit.masked_softmax(logits, (counts > 0).mT[:, None])
        weights = functional.dropout(weights, self.dropout_p)
        return (weights @ values).to(given)

    def _members(self, real: Tensor) -> Tensor:
        """real: (B, S) -> bool (B, m, S): which real key belongs to which landmark."""
        before = real.cumsum(-1) - 1
        total = real.sum(-1, keepdim=True)
        used = total.clamp(max=self.config.landmarks)
        landmark = before * used // total.clamp(min=1)
        names = torch.arange(self.config.landmarks, device=real.device)
        return (landmark[:, None] == names[:, None]) & real[:, None]

    def reference(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        samples = []
        for b in range(q.shape[0]):
            slots = list(range(k.shape[2]))
            if mask.real is not None:
                slots = [j for j in slots if mask.real[b, j]]
            used = min(self.config.landmarks, len(slots))
            groups: list[list[int]] = [[] for _ in range(used)]
            for rank, slot in enumerate(slots):
                groups[rank * used // len(slots)].append(slot)
            samples.append(self._sample(q[b], k[b], v[b], groups))
        return torch.stack(samples)

    def _sample(self, q: Tensor, k: Tensor, v: Tensor, groups: list[list[int]]) -> Tensor:
        """q (H, L, D), k (Hkv, S, D), v (Hkv, S, Dv) -> (H, L, Dv)."""
        if not groups:
            return q.new_zeros(*q.shape[:2], v.shape[2])
        heads = []
        for h in range(q.shape[0]):
            g = h // (q.shape[0] // k.shape[0])
            keys = torch.stack([k[g, members].mean(0) for members in groups])
            values = torch.stack([v[g, members].mean(0) for members in groups])
            sizes = torch.tensor([float(len(members)) for members in groups]).to(q)
            logits = self.scale_for(q.shape[-1]) * torch.einsum("ld,md->lm", q[h], keys)
            heads.append((logits + sizes.log()).softmax(-1) @ values)
        return torch.stack(heads)


class Retention(SequenceAttention):
    """out_i = scale sum_j<=i gamma_h^(n_i - n_j) (q_i . k_j) v_j over real keys j.

    n_i counts the real tokens up to and with i: padding does not decay. The decay belongs to the
    query head h: gamma_h = 1 - 2^-(slowness + h). Sun et al., arXiv 2307.08621, without its norm.
    """

    capabilities = Capabilities(
        masks={"padding"},
        requires={"causal"},
        grouped_heads="native",
        state="recurrent",
        devices={"cpu": PLAIN, "cuda": PLAIN},
        exactness="own kernel",
        linear_in_values=True,
        compiles="dynamic",
        exports="dynamic",
    )

    class Config(SequenceAttention.Config):
        """``slowness``: the fastest head forgets 2^-slowness of all at each token."""

        slowness: float = pydantic.Field(default=5.0, gt=0)

    config: Config

    @classmethod
    def examples(cls) -> tuple[Config, ...]:
        return cls.Config(), cls.Config(slowness=0.5, scale=1.0)

    def refuse(self, call: Call) -> tuple[Refusal, ...]:
        if not call.prefix:
            return ()
        way_out = "drop the prefix: there is no decay towards keys that lie ahead"
        return (Refusal("prefix", call.prefix, "0", way_out),)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        return self._within(q, k, v, mask).to(q.dtype)

    def _log_decay(self, heads: int, like: Tensor) -> Tensor:
        """log gamma, (H, 1, 1)."""
        head = torch.arange(heads, device=like.device, dtype=like.dtype)
        return torch.log1p(-(2.0 ** -(self.config.slowness + head)))[:, None, None]

    def _count(self, k: Tensor, mask: Mask) -> Tensor:
        """The real tokens up to each, and with it: (B or 1, 1, S), in the dtype of the sums."""
        real = mask.real
        if real is None:
            real = torch.ones(1, k.shape[2], dtype=torch.bool, device=k.device)
        return real.cumsum(-1)[:, None].to(kit.accumulation_dtype(k.dtype))

    def _keys_values(self, k: Tensor, v: Tensor, mask: Mask, heads: int) -> tuple[Tensor, Tensor]:
        """Both in the dtype of the sums, with H heads, and zero where they are padding."""
        exact = kit.accumulation_dtype(k.dtype)
        if mask.real is not None:
            closed = ~mask.real[:, None, :, None]
            k, v = k.masked_fill(closed, 0.0), v.masked_fill(closed, 0.0)
        return kit.repeat_heads(k.to(exact), heads), kit.repeat_heads(v.to(exact), heads)

    def _within(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
        """The quadratic form, in the dtype of the sums."""
        heads, queries, keys = q.shape[1], q.shape[2], k.shape[2]
        count = self._count(k, mask)
        k, v = self._keys_values(k, v, mask, heads)
        scores = self.scale_for(q.shape[-1]) * q.to(k.dtype) @ k.mT
        age = count[:, :, keys - queries :, None] - count[:, :, None]
        decay = (age.clamp(min=0) * self._log_decay(heads, k)).exp()
        closed = torch.ones(queries, keys, dtype=torch.bool, device=k.device)
        closed = closed.triu(1 + keys - queries)
        return (scores * decay).masked_fill(closed, 0.0) @ v

    def start(
        self, batch: int, sizes: Sizes | None, *, dtype: torch.dtype, device: torch.device
    ) -> State:
        sizes = sizes or self.require_sizes()
        shape = batch, sizes.heads, sizes.head_dim, sizes.value_dim
        exact = kit.accumulation_dtype(dtype)
        return RecurrentState(0, {"sum": torch.zeros(shape, dtype=exact, device=device)})

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, state: Any, mask: Mask, inputs: Inputs
    ) -> tuple[Tensor, State]:
        before = state.tensors["sum"]
        heads = q.shape[1]
        count = self._count(k, mask)[..., None]
        rate = self._log_decay(heads, before)
        asked = self.scale_for(q.shape[-1]) * q.to(before.dtype) * (count * rate).exp()
        out = self._within(q, k, v, mask) + asked @ before
        k, v = self._keys_values(k, v, mask, heads)
        total = count[:, :, -1:]
        after = (total * rate).exp() * before + (k * ((total - count) * rate).exp()).mT @ v
        return out.to(q.dtype), state.advance(q.shape[2], {"sum": after})

    def reference(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        heads, first = q.shape[1], k.shape[2] - q.shape[2]
        k, v = (x.repeat_interleave(heads // x.shape[1], dim=1) for x in (k, v))
        gammas = [1 - 2 ** -(self.config.slowness + h) for h in range(heads)]
        gamma = torch.tensor(gammas, dtype=torch.float64).to(q)[:, None, None]
        held = torch.zeros_like(k[:, :, 0, :, None] * v[:, :, 0, None, :])
        rows = []
        for t in range(k.shape[2]):
            told = gamma * held + torch.einsum("bhd,bhv->bhdv", k[:, :, t], v[:, :, t])
            if mask.real is not None:
                told = torch.where(mask.real[:, t, None, None, None], told, held)
            held = told
            if t >= first:
                rows.append(torch.einsum("bhd,bhdv->bhv", q[:, :, t - first], held))
        return self.scale_for(q.shape[-1]) * torch.stack(rows, dim=2)


class ChannelConvolution(FeatureMapAttention):
    """Efficient channel attention: x_c sigmoid(sum_t w_t m_(c + t - kernel // 2)).

    m_c is the mean of channel c over the real pixels, zero beyond the first and the last channel.
    Wang et al., arXiv 1910.03151, with the kernel as an option. The mean of no pixel is zero.
    """

    capabilities = FeatureMapCapabilities(
        keep=True,
        gate=(0.0, 1.0),
        symmetry="pixels",
        pooling={"avg"},
        devices={"cpu": PLAIN, "cuda": PLAIN},
        compiles="dynamic",
        exports="dynamic",
    )

    class Config(Options):
        """``kernel``: how many neighbouring channels each gate hears; odd."""

        kernel: int = pydantic.Field(default=3, ge=1)

        @pydantic.field_validator("kernel")
        @classmethod
        def _odd(cls, value: int) -> int:
            if value % 2 == 0:
                raise ValueError("expected an odd number, so that the kernel has a middle")
            return value

    config: Config

    @classmethod
    def examples(cls) -> tuple[Config, ...]:
        return cls.Config(), cls.Config(kernel=7)

    def build(self) -> None:
        bound = self.config.kernel**-0.5
        self.weight = nn.Parameter(torch.empty(self.config.kernel).uniform_(-bound, bound))

    def attend(self, x: Tensor, keep: Tensor | None) -> Tensor:
        exact = kit.accumulation_dtype(x.dtype)
        space = tuple(range(2, x.ndim))
        if keep is None:
            mean = x.mean(space, dtype=exact)
        else:
            keep = keep[:, None]
            total = x.masked_fill(~keep, 0.0).sum(space, dtype=exact)
            mean = kit.safe_divide(total, keep.sum(space).to(exact))
        weight = self.weight.to(exact)[None, None]
        logits = functional.conv1d(mean[:, None], weight, padding=self.config.kernel // 2)
        gate = logits[:, 0].sigmoid().reshape(*x.shape[:2], *(1 for _ in space))
        return (x.to(exact) * gate).to(x.dtype)

    def reference(self, x: Tensor, keep: Tensor | None) -> Tensor:
        samples = []
        for b in range(x.shape[0]):
            pixels = x[b].flatten(1) if keep is None else x[b][:, keep[b]]
            mean = pixels.mean(1) if pixels.shape[1] else torch.zeros_like(x[b].flatten(1)[:, 0])
            gates = []
            for c in range(x.shape[1]):
                logit = torch.zeros_like(mean[0])
                for t in range(self.config.kernel):
                    heard = c + t - self.config.kernel // 2
                    if 0 <= heard < x.shape[1]:
                        logit = logit + self.weight[t].to(x.dtype) * mean[heard]
                gates.append(1 / (1 + (-logit).exp()))
            samples.append(torch.stack([x[b, c] * gate for c, gate in enumerate(gates)]))
        return torch.stack(samples)
