"""Gated linear attention: a state that forgets, at a rate that each token sets for each channel.

    S_t = diag(a_t) S_{t-1} + k_t v_t^T       out_t = scale q_t S_t       scale = 1/sqrt(D)
    a_t = sigmoid(gate_t)^(1/temperature)     gate: a side input, (B, Hkv, S, D)

so key j weighs scale sum_d q_td k_jd (a_{j+1} ... a_t)_d for query t, and nothing is normalised.

Paper: Yang et al., Gated linear attention transformers with hardware-efficient training,
https://arxiv.org/abs/2312.06635.

Deviations:
- the gate is given ready; the paper makes it of x by two thin matrices, here that is the wrapper's
  projection;
- no output gate and no norm behind the attention: they belong to a block, not to a variant;
- padded tokens neither enter the state nor let it decay.

Cost: linear in the length: 4 H D Dv operations per token, as many again within chunks of 64, and
12 exponentials per token and channel. Memory: the output and, with gradients, a (D, Dv) state for
every 64 tokens. Decoding keeps one such state per key head, whatever the length.

When not to use it: where order is no clue or both directions count, as it is causal or nothing;
where rows must be averages of the values; where one key among many must be found.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pydantic
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, pad

from polyattn import (
    Call,
    Capabilities,
    Inputs,
    InputSize,
    Mask,
    Options,
    RecurrentState,
    Refusal,
    SequenceAttention,
    Sizes,
    State,
    kit,
)
from polyattn_plugins.gated_kernel import scan

__all__ = ["GatedLinear"]


class GatedLinear(SequenceAttention):
    """Causal linear attention whose state decays by a gate of each token."""

    capabilities = Capabilities(
        masks={"causal", "padding"},
        requires={"causal"},
        grouped_heads="native",
        state="recurrent",
        exactness="own kernel",
        linear_memory=True,
        linear_in_values=True,
        compiles="dynamic",
        exports="dynamic",
    )
    side_inputs: ClassVar[Mapping[str, InputSize]] = {"gate": InputSize("kv_heads", "head_dim")}

    class Config(Options):
        """``scale``: factor of the output, default 1/sqrt(D). ``temperature``: the larger, the
        closer to 1 the decays, and the longer the memory."""

        scale: float | None = pydantic.Field(default=None, gt=0)
        temperature: float = pydantic.Field(default=16.0, gt=0)

    config: Config

    @classmethod
    def examples(cls) -> tuple[Config, ...]:
        return cls.Config(), cls.Config(scale=1.0, temperature=1.0)

    def refuse(self, call: Call) -> list[Refusal]:
        if not call.prefix:
            return []
        way_out = "use Mask.causal() without a prefix"
        return [Refusal("prefix", call.prefix, "0: a decay has an order", way_out)]

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        k, decay = self._entering(k, inputs["gate"], mask.real)
        sizes = Sizes(q.shape[1], q.shape[3], k.shape[1], v.shape[3])
        state = self._zeros(q.shape[0], sizes, kit.accumulation_dtype(q.dtype), q.device)
        earlier = k.shape[2] - q.shape[2]
        # Keys before the first query are read by nobody: queries of zeros.
        q = pad(q, (0, 0, earlier, 0)) if earlier else q
        out: Tensor = scan(q, k, v, decay, state, self.scale_for(q.shape[3]))[0]
        return out[:, :, earlier:]

    def reference(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        batch, heads, queries, keys = *q.shape[:3], k.shape[2]
        gate, groups = inputs["gate"], heads // k.shape[1]
        k, v, gate = (x.repeat_interleave(groups, dim=1) for x in (k, v, gate))
        decay = -torch.logaddexp(torch.zeros_like(gate), -gate) / self.config.temperature
        keep = mask.keep(queries, keys, batch, heads, q.device)
        assert keep is not None
        if mask.real is not None:
            decay = torch.where(mask.real[:, None, :, None], decay, 0.0)
        age = decay.cumsum(2)
        between = age[:, :, keys - queries :, None] - age[:, :, None]
        survives = torch.where(keep[..., None], between, -torch.inf).exp()
        weights = torch.einsum("bhld,bhsd,bhlsd->bhls", q, k, survives)
        return self.scale_for(q.shape[3]) * torch.einsum("bhls,bhsv->bhlv", weights, v)

    def start(
        self, batch: int, sizes: Sizes | None, *, dtype: torch.dtype, device: torch.device
    ) -> State:
        """The state before any token: s (B, Hkv, D, Dv), zeros."""
        sizes = sizes or self.require_sizes()
        s = self._zeros(batch, sizes, kit.accumulation_dtype(dtype), device)
        return RecurrentState(0, {"s": s})

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, state: Any, mask: Mask, inputs: Inputs
    ) -> tuple[Tensor, State]:
        k, decay = self._entering(k, inputs["gate"], mask.real)
        scale, s = self.scale_for(q.shape[3]), state.tensors["s"]
        if q.shape[2] == 1:
            with kit.as_given(q):
                out, s = _one_token(q, k, v, decay, s, scale)
        else:
            out, s = scan(q, k, v, decay, s, scale)
        return out, state.advance(q.shape[2], {"s": s})

    def _entering(self, k: Tensor, gate: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor]:
        """Keys and log decays (B, Hkv, S, D): both zero for padding."""
        decay = logsigmoid(gate.to(kit.accumulation_dtype(k.dtype))) / self.config.temperature
        if real is None:
            return k, decay
        keep = real[:, None, :, None]
        return torch.where(keep, k, 0.0), torch.where(keep, decay, 0.0)

    @staticmethod
    def _zeros(batch: int, sizes: Sizes, dtype: torch.dtype, device: torch.device | str) -> Tensor:
        shape = (batch, sizes.kv_heads, sizes.head_dim, sizes.value_dim)
        return torch.zeros(shape, dtype=dtype, device=device)


def _one_token(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, s: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """A step of one token, written out: fewer operations than a chunk of one."""
    dtype, shape = q.dtype, q.shape
    q, k, v = (x.to(s.dtype) for x in (q, k, v))
    s = torch.addcmul(s * decay.exp().mT, k.mT, v)
    out = (q.reshape(shape[0], k.shape[1], -1, shape[3]) * scale) @ s
    return out.reshape(*shape[:3], v.shape[3]).to(dtype), s
