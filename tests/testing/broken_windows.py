"""Attention whose window, declared pattern or sliding state is not what it claims."""

from __future__ import annotations

import dataclasses
from types import MappingProxyType
from typing import Any

import torch
from tests.testing.correct import Plain
from tests.testing.correct_claims import PlainPattern, PlainWindow
from torch import Tensor

from polyattn import Inputs, KeyValueState, Mask, RecurrentState, Sizes, State


class HalfOfAWideWindow(PlainWindow):
    """A window wider than half of the keys is cut there."""

    def pattern(self, queries: int, keys: int, *, device: torch.device) -> Tensor:
        place = torch.arange(queries, device=device)[:, None] + keys - queries
        distance = torch.arange(keys, device=device) - place
        left = min(self.config.left, max(keys // 2, 12))
        return (distance >= -left) & (distance <= self.config.right)


class WideIsBothWays(PlainWindow):
    """A window over everything is taken for none, and causality is lost with it."""

    def pattern(self, queries: int, keys: int, *, device: torch.device) -> Tensor:
        own = super().pattern(queries, keys, device=device)
        return torch.ones_like(own) if self.config.left >= max(keys, 20) else own


class LooksWithinItsBlock(PlainWindow):
    """Blocks of eight from position 0, across whose borders nobody looks."""

    def keep(self, mask: Mask, logits: Tensor) -> Tensor | None:
        queries, keys = logits.shape[2:]
        place = torch.arange(queries)[:, None] + keys - queries
        keep = super().keep(mask, logits)
        assert keep is not None
        return keep & (place // 8 == torch.arange(keys) // 8)


class KnowsItsPosition(PlainWindow):
    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        place = torch.arange(q.shape[2])[:, None] + k.shape[2] - q.shape[2]
        return super().logits(q, k) * (1 + 1e-4 * place)


class DropsWhatDoesNotFit(Plain):
    """With more queries than keys, windows and slopes are left out without a word."""

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Mask | None = None,
        inputs: Inputs = MappingProxyType({}),
    ) -> Tensor:
        if mask is not None and q.shape[2] > k.shape[2]:
            mask = mask.without("window", "alibi")
        return super().forward(q, k, v, mask, inputs)


class CountsFromTheFirst(Plain):
    """Lengths are never compared: the queries are taken for the first L positions."""

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Mask | None = None,
        inputs: Inputs = MappingProxyType({}),
    ) -> Tensor:
        if mask is None or mask.span is None or q.shape[2] <= k.shape[2]:
            return super().forward(q, k, v, mask, inputs)
        distance = torch.arange(k.shape[2]) - torch.arange(q.shape[2])[:, None]
        near = (distance >= -(mask.span[0] or 0)) & (distance <= (mask.span[1] or 0))
        return super().forward(q, k, v, mask.without("window") & Mask.dense(near), inputs)


class OnePatternForAllHeads(PlainPattern):
    def used(self, queries: int, keys: int) -> Tensor:
        return super().used(queries, keys)[:1]


class HeadsInAnotherOrder(PlainPattern):
    def used(self, queries: int, keys: int) -> Tensor:
        return super().used(queries, keys).flip(0)


class NothingForTheFirst(PlainPattern):
    """A query does not see its own key, so the first one sees none."""

    def pattern(self, queries: int, keys: int, *, device: torch.device) -> Tensor:
        own = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries - 1)
        return super().pattern(queries, keys, device=device) & own


class DrawnForALength(PlainPattern):
    """Every length has random keys of its own."""

    def pattern(self, queries: int, keys: int, *, device: torch.device) -> Tensor:
        generator = torch.Generator().manual_seed(keys)
        drawn = torch.rand(self.heads, keys, keys, generator=generator) < 0.5
        rows = drawn[:, keys - queries :] if queries <= keys else drawn[:, :1]
        return super().pattern(queries, keys, device=device) | rows


class OneKeyTooFewInItsState(PlainWindow):
    def start(
        self, batch: int, sizes: Sizes | None, *, dtype: torch.dtype, device: torch.device
    ) -> State:
        return KeyValueState(reach=self.config.left - 1)


class OverwrittenBeforeItIsRead(PlainWindow):
    """A ring of the window's size: of a chunk that is longer, the early tokens see little."""

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, state: Any, mask: Mask, inputs: Inputs
    ) -> tuple[Tensor, State]:
        held, over_all, state = state.append({"k": k, "v": v}, mask, q)
        keys = held["k"].shape[2]
        ring = torch.arange(keys) >= keys - max(self.config.left + 1, 1)
        over_all = over_all & Mask.dense(ring.expand(q.shape[2], -1).clone())
        return self.attend(q, held["k"], held["v"], over_all, inputs), state


class KeepsEverything(PlainWindow):
    """What a window no longer sees is closed, and kept."""

    def start(
        self, batch: int, sizes: Sizes | None, *, dtype: torch.dtype, device: torch.device
    ) -> State:
        return KeyValueState()


class _Uncounted(KeyValueState):
    @property
    def nbytes(self) -> int:
        return super().nbytes // 2


class CountsHalfOfItsState(PlainWindow):
    """Its values are not counted."""

    def start(
        self, batch: int, sizes: Sizes | None, *, dtype: torch.dtype, device: torch.device
    ) -> State:
        return _Uncounted(reach=self.config.left)


class RecurrentThatGrows(PlainWindow):
    """Claims a state of fixed size, and keeps all keys in it."""

    capabilities = dataclasses.replace(PlainWindow.capabilities, state="recurrent")

    def start(
        self, batch: int, sizes: Sizes | None, *, dtype: torch.dtype, device: torch.device
    ) -> State:
        return RecurrentState(0, {})

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, state: Any, mask: Mask, inputs: Inputs
    ) -> tuple[Tensor, State]:
        new = {"k": k, "v": v}
        old = state.tensors
        held = {n: torch.cat([old[n], x], dim=2) if old else x for n, x in new.items()}
        out = self.attend(q, held["k"], held["v"], Mask.causal(), inputs)
        return out, state.advance(q.shape[2], held)


CAUGHT: tuple[tuple[type, str], ...] = (
    (HalfOfAWideWindow, "check_window_full_equals_dense"),
    (WideIsBothWays, "check_window_full_equals_dense"),
    (LooksWithinItsBlock, "check_shift_equivariance"),
    (KnowsItsPosition, "check_shift_equivariance"),
    (DropsWhatDoesNotFit, "check_more_queries_raise"),
    (CountsFromTheFirst, "check_more_queries_raise"),
    (OnePatternForAllHeads, "check_declared_pattern"),
    (HeadsInAnotherOrder, "check_declared_pattern"),
    (NothingForTheFirst, "check_declared_pattern"),
    (DrawnForALength, "check_declared_pattern"),
    (OneKeyTooFewInItsState, "check_window_cache_eviction"),
    (OverwrittenBeforeItIsRead, "check_window_cache_eviction"),
    (KeepsEverything, "check_state_size"),
    (CountsHalfOfItsState, "check_state_size"),
    (RecurrentThatGrows, "check_state_size"),
)
"""Each with the check that must catch it, by name."""
