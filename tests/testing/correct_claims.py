"""Attention written correctly that claims what softmax over everything cannot: the broken ones
change it."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from tests.testing.correct import SOFTMAX, Online, Plain
from torch import Tensor

from polyattn import Inputs, KeyValueState, Mask, SequenceAttention, Sizes, State
from polyattn.operation import Operation


class NaNBlind(Plain):
    """Reads no key that is closed to every query."""

    capabilities = dataclasses.replace(SOFTMAX, nan_blind=True, dropout=True)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        k, v = self.spread(k, q.shape[1]), self.spread(v, q.shape[1])
        seen = self.seen(mask, q, k)
        k, v = self.read(k, seen), self.read(v, seen)
        return super().attend(q, k, v, mask, inputs)

    def seen(self, mask: Mask, q: Tensor, k: Tensor) -> Tensor:
        """Bool (B, H, S, 1): the keys that some query sees."""
        shape = (*q.shape[:3], k.shape[2])
        open_ = torch.ones(shape, dtype=torch.bool)
        keep = mask.keep(*shape[2:], *shape[:2])
        bias = mask.logit_bias(*shape[2:], dtype=q.dtype)
        open_ = open_ if keep is None else open_ & keep
        open_ = open_ if bias is None else open_ & (bias != -torch.inf)
        return open_.any(2).unsqueeze(-1)

    def read(self, x: Tensor, seen: Tensor) -> Tensor:
        return torch.where(seen, x, 0.0)


class PlainWindow(Plain):
    """Softmax over ``left`` keys before a query's own and ``right`` after it."""

    capabilities = dataclasses.replace(
        SOFTMAX, masks={"causal", "padding"}, state="sliding", key_order_invariant=False
    )

    class Config(Plain.Config):
        left: int = 4
        right: int = 0

    config: Config

    def pattern(self, queries: int, keys: int, *, device: torch.device) -> Tensor:
        place = torch.arange(queries, device=device)[:, None] + keys - queries
        distance = torch.arange(keys, device=device) - place
        return (distance >= -self.config.left) & (distance <= self.config.right)

    def keep(self, mask: Mask, logits: Tensor) -> Tensor | None:
        keep = super().keep(mask, logits)
        own = self.pattern(*logits.shape[2:], device=logits.device)
        return own if keep is None else keep & own

    def start(
        self, batch: int, sizes: Sizes | None, *, dtype: torch.dtype, device: torch.device
    ) -> State:
        return KeyValueState(reach=self.config.left)


class PlainPattern(Plain):
    """Head h sees every second key, beginning with its own, and ``reach`` + h keys before it."""

    capabilities = dataclasses.replace(
        SOFTMAX, masks={"causal"}, key_order_invariant=False, grouped_heads="repeated"
    )

    class Config(Plain.Config):
        reach: int = 1

    config: Config

    def build(self) -> None:
        self.heads = self.require_sizes().heads

    def pattern(self, queries: int, keys: int, *, device: torch.device) -> Tensor:
        place = torch.arange(queries, device=device)[:, None] + keys - queries
        distance = place - torch.arange(keys, device=device)
        near = [
            (distance >= 0) & (distance <= self.config.reach + head) for head in range(self.heads)
        ]
        return torch.stack(near) | (distance % 2 == 0)

    def used(self, queries: int, keys: int) -> Tensor:
        """The pattern that ``attend`` lays over the logits."""
        return self.pattern(queries, keys, device=torch.device("cpu"))

    def keep(self, mask: Mask, logits: Tensor) -> Tensor | None:
        keep = super().keep(mask, logits)
        used = self.used(*logits.shape[2:])
        return used if keep is None else keep & used


class PlainOperation(Operation):
    """Softmax attention, by whichever of two implementations."""

    other: type[Plain] | type[Online] = Online

    class Config(Plain.Config):
        """The options that both share."""

    def __init__(self, config: Any, sizes: Sizes | None = None) -> None:
        members: dict[str, SequenceAttention] = {"plain": Plain(config, sizes)}
        if self.other.capabilities.dropout or not config.dropout:
            members["other"] = self.other(config, sizes)
        super().__init__("softmax_of_sorts", members, config, sizes)


CLAIMING = (NaNBlind, PlainWindow, PlainPattern, PlainOperation)
