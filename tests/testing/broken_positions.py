"""Position modules that are wrong in one way each, and a partial rotation that is right."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polyattn.layers.positions import Alibi, Count, HeadPosition, Learned, Sinusoidal
from polyattn.mask import Mask, alibi_slopes
from polyattn.testing import (
    Counting,
    DistanceBias,
    Embedding,
    PositionSubject,
    Rotation,
    position_checks,
)
from polyattn.testing.planned import Check


def checks_of_planted(module: type) -> Iterable[Check]:
    """The checks of one of the classes below."""
    return position_checks(_subject(module))


def _subject(module: type) -> PositionSubject:
    name = module.__name__
    if issubclass(module, Turns):
        return Rotation(name=name, build=module, pairing=module.pairing, share=module.share)
    if issubclass(module, Alibi):
        return DistanceBias(name=name, build=module)
    if issubclass(module, Count):
        return Counting(name=name, start=module)
    if issubclass(module, Learned):
        return Embedding(name=name, build=lambda width: module(64, width), max_length=64)
    return Embedding(name=name, build=module, relative=True, waves=10_000.0)


class Turns(HeadPosition):
    """Rotary positions, step by step."""

    pairing: Literal["halves", "neighbours"] = "halves"
    share = 1.0
    uses_positions = True

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.width = int(head_dim * self.share)

    def turn(self, q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        return self.turned(q, positions), self.turned(k, positions)

    def turned(self, x: Tensor, positions: Tensor) -> Tensor:
        head, rest = x[..., : self.width], x[..., self.width :]
        angles = self.angles(positions, x.dtype)
        angles = angles[:, None] if angles.dim() == 3 else angles
        exact = torch.promote_types(x.dtype, torch.float32)
        out = self.rotated(head.to(exact), angles.cos().to(exact), angles.sin().to(exact))
        return torch.cat([out.to(x.dtype), rest], -1)

    def angles(self, positions: Tensor, dtype: torch.dtype) -> Tensor:
        return positions.double()[..., None] * self.frequencies()

    def frequencies(self) -> Tensor:
        return 10_000.0 ** (-torch.arange(0, self.width, 2, dtype=torch.float64) / self.width)

    def rotated(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


class TurnsHalfOfTheHead(Turns):
    """Right: the first half of the channels."""

    share = 0.5


class TurnsNeighbours(Turns):
    """Right: planes of neighbouring channels."""

    pairing = "neighbours"

    def rotated(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        first, second = x[..., ::2], x[..., 1::2]
        return torch.stack([first * cos - second * sin, second * cos + first * sin], -1).flatten(-2)


class TurnsKeysBackwards(Turns):
    def turn(self, q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        return self.turned(q, positions), self.turned(k, -positions)


class EndsAt2048(Turns):
    def angles(self, positions: Tensor, dtype: torch.dtype) -> Tensor:
        return super().angles(positions.clamp(max=2048), dtype)


class LeavesAScale(Turns):
    def rotated(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return super().rotated(x, cos, sin) * 1.25


class AddsWhereItShouldSubtract(Turns):
    def rotated(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        return torch.cat([first * cos + second * sin, second * cos + first * sin], -1)


class CountsFromOne(Turns):
    def angles(self, positions: Tensor, dtype: torch.dtype) -> Tensor:
        return super().angles(positions + 1, dtype)


class SwapsSineAndCosine(Turns):
    def rotated(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return super().rotated(x, sin, cos)


class PairsTheOtherWay(TurnsNeighbours):
    pairing = "halves"


class HasAnotherBase(Turns):
    def frequencies(self) -> Tensor:
        return super().frequencies() ** 1.02


class TurnsBackwards(Turns):
    def rotated(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return super().rotated(x, cos, -sin)


class TurnsTheLastHalf(TurnsHalfOfTheHead):
    def turned(self, x: Tensor, positions: Tensor) -> Tensor:
        return super().turned(x.flip(-1), positions).flip(-1)


class TurnsAllOfIt(TurnsHalfOfTheHead):
    def __init__(self, head_dim: int) -> None:
        super().__init__(head_dim)
        self.width = head_dim


class RoundsTheRest(TurnsHalfOfTheHead):
    def turned(self, x: Tensor, positions: Tensor) -> Tensor:
        out = super().turned(x, positions)
        return torch.cat([out[..., : self.width], out[..., self.width :].half().to(x.dtype)], -1)


class PositionsInHalf(Turns):
    def angles(self, positions: Tensor, dtype: torch.dtype) -> Tensor:
        return super().angles(positions.to(dtype), dtype)


class FrequenciesFollowTheModule(Turns):
    def __init__(self, head_dim: int) -> None:
        super().__init__(head_dim)
        self.register_buffer("table", super().frequencies())

    def frequencies(self) -> Tensor:
        return self.get_buffer("table").double()


class AnglesByAProduct(Turns):
    """A matrix product, which autocast takes in its own dtype."""

    def angles(self, positions: Tensor, dtype: torch.dtype) -> Tensor:
        exact = torch.float64 if dtype == torch.float64 else torch.float32
        return positions[..., None].to(exact) @ self.frequencies()[None].to(exact)


class TurnsBySlots(Turns):
    def angles(self, positions: Tensor, dtype: torch.dtype) -> Tensor:
        return super().angles(torch.arange(positions.shape[-1]).expand(positions.shape), dtype)


class PositionsOfTheFirstSample(Turns):
    def angles(self, positions: Tensor, dtype: torch.dtype) -> Tensor:
        return super().angles(positions[0] if positions.dim() == 2 else positions, dtype)


class KeepsItsFirstTable(Turns):
    """Rows that it has once are not asked for again."""

    def __init__(self, head_dim: int) -> None:
        super().__init__(head_dim)
        self.known: Tensor | None = None

    def angles(self, positions: Tensor, dtype: torch.dtype) -> Tensor:
        angles = super().angles(positions, dtype)
        if self.known is None or self.known.shape[-2] < angles.shape[-2]:
            self.known = angles
        return self.known[..., : angles.shape[-2], :].expand(angles.shape)


class SinesForTheHalf(Sinusoidal):
    def forward(self, positions: Tensor) -> Tensor:
        return super().forward(positions)[..., : max(2, self.d_model // 2 * 2)]


class FlattensTheBatch(Sinusoidal):
    def forward(self, positions: Tensor) -> Tensor:
        return super().forward(positions.flatten())


class VectorsBySlots(Sinusoidal):
    def forward(self, positions: Tensor) -> Tensor:
        return super().forward(torch.arange(positions.shape[-1]).expand(positions.shape))


class CentresTheSequence(Sinusoidal):
    def forward(self, positions: Tensor) -> Tensor:
        table = super().forward(positions)
        return table - table.mean(-2, keepdim=True)


class PositionsInBfloat16(Sinusoidal):
    def forward(self, positions: Tensor) -> Tensor:
        return super().forward(positions.bfloat16())


class TwoShareAVector(Learned):
    def forward(self, positions: Tensor) -> Tensor:
        return super().forward(positions // 2 * 2)


class ClampsPositions(Learned):
    def forward(self, positions: Tensor) -> Tensor:
        return super().forward(positions.clamp(max=self.max_length - 1))


class BeginsAgain(Learned):
    def forward(self, positions: Tensor) -> Tensor:
        return super().forward(positions % self.max_length)


class LeavesTheLimitToTorch(Learned):
    def forward(self, positions: Tensor) -> Tensor:
        return F.embedding(positions, self.weight)


class EndsAt5000(Sinusoidal):
    def forward(self, positions: Tensor) -> Tensor:
        return super().forward(positions.clamp(max=5000))


class SinesFirst(Sinusoidal):
    def forward(self, positions: Tensor) -> Tensor:
        table = super().forward(positions)
        return torch.cat([table[..., ::2], table[..., 1::2]], -1)


class ExponentOfEachChannel(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, positions: Tensor) -> Tensor:
        channels = torch.arange(self.width, dtype=torch.float64)
        angles = positions[..., None].double() * 10_000.0 ** (-channels / self.width)
        return torch.where(channels % 2 == 1, angles.cos(), angles.sin()).float()


class GrowsWithThePosition(Sinusoidal):
    def forward(self, positions: Tensor) -> Tensor:
        return super().forward(positions) * (1 + 1e-3 * positions[..., None])


class DoublesPositions(Turns):
    """A factor for longer contexts, applied where nobody asked for one."""

    def angles(self, positions: Tensor, dtype: torch.dtype) -> Tensor:
        return super().angles(2 * positions, dtype)


class TurnsAlongTheHeads(Turns):
    """Made for (B, L, H, D), given (B, H, L, D)."""

    def turned(self, x: Tensor, positions: Tensor) -> Tensor:
        heads = torch.arange(x.shape[1])
        return super().turned(x.transpose(1, 2), heads).transpose(1, 2)


class StartsAHeadLate(Alibi):
    def constrain(self, mask: Mask) -> Mask:
        return mask & Mask.alibi(self.slopes * 2 ** (8 / self.slopes.numel()))


class OneSequenceForAnyHeads(Alibi):
    """Geometric also where the heads are no power of two."""

    def constrain(self, mask: Mask) -> Mask:
        heads = self.slopes.numel()
        powers = [2 ** (-8 * (h + 1) / heads) for h in range(heads)]
        return mask & Mask.alibi(torch.tensor(powers))


class _Added(Mask):
    """What is added, changed on its way."""

    def logit_bias(self, queries, keys, *, dtype=torch.float32, device=None):  # type: ignore[no-untyped-def]
        own = torch.arange(queries)[:, None] + keys - queries
        distance = self.distance(own, torch.arange(keys), queries, keys)
        return (-self.slopes[:, None, None] * distance)[None].to(dtype)

    def distance(self, own: Tensor, key: Tensor, queries: int, keys: int) -> Tensor:
        return (own - key).abs()


class _FromTheFirstQuery(_Added):
    def distance(self, own: Tensor, key: Tensor, queries: int, keys: int) -> Tensor:
        return (own - (keys - queries) - key).abs()


class _WithoutAbs(_Added):
    def distance(self, own: Tensor, key: Tensor, queries: int, keys: int) -> Tensor:
        return own - key


class _OverTheLength(_Added):
    def distance(self, own: Tensor, key: Tensor, queries: int, keys: int) -> Tensor:
        return (own - key).abs() / keys


class CountsFromTheFirstQuery(Alibi):
    def constrain(self, mask: Mask) -> Mask:
        return _FromTheFirstQuery(slopes=self.slopes)


class ForgetsAbs(Alibi):
    def constrain(self, mask: Mask) -> Mask:
        return _WithoutAbs(slopes=self.slopes)


class ScalesByTheLength(Alibi):
    def constrain(self, mask: Mask) -> Mask:
        return _OverTheLength(slopes=self.slopes)


class OneSlopeForAll(Alibi):
    def constrain(self, mask: Mask) -> Mask:
        return mask & Mask.alibi(self.slopes[:1].expand(self.slopes.shape))


class SlopesFollowTheModule(Alibi):
    def __init__(self, heads: int) -> None:
        super().__init__(heads)
        self.register_buffer("cast", alibi_slopes(heads), persistent=False)

    def constrain(self, mask: Mask) -> Mask:
        return mask & Mask.alibi(self.get_buffer("cast"))


class SlopesAreLearned(Alibi):
    def __init__(self, heads: int) -> None:
        super().__init__(heads)
        self.learned = nn.Parameter(alibi_slopes(heads))

    def constrain(self, mask: Mask) -> Mask:
        return mask & Mask.alibi(self.learned)


class CountsSlots(Count):
    def take(self, mask: Mask, length: int, device: torch.device) -> tuple[Tensor, Count]:
        after = self.slots + length
        return torch.arange(self.slots, after), CountsSlots(after)


class DocumentsGoOn(Count):
    def take(self, mask: Mask, length: int, device: torch.device) -> tuple[Tensor, Count]:
        return super().take(mask.without("segments"), length, device)


class BeginsEachChunkAtZero(Count):
    def take(self, mask: Mask, length: int, device: torch.device) -> tuple[Tensor, Count]:
        positions, _ = Count().take(mask, length, device)
        return positions, BeginsEachChunkAtZero(self.slots + length)


class CountsPaddingBetweenChunks(Count):
    def take(self, mask: Mask, length: int, device: torch.device) -> tuple[Tensor, Count]:
        positions, after = super().take(mask, length, device)
        real = None if after.real is None else torch.full_like(after.real, after.slots)
        return positions, CountsPaddingBetweenChunks(after.slots, real, after.ids, after.keep)


class CountsInPlace(Count):
    def take(self, mask: Mask, length: int, device: torch.device) -> tuple[Tensor, Count]:
        positions, after = super().take(mask, length, device)
        if self.real is not None and after.real is not None:
            self.real.copy_(after.real)
        return positions, CountsInPlace(after.slots, after.real, after.ids, after.keep)


class ForgetsToReorder(Count):
    def take(self, mask: Mask, length: int, device: torch.device) -> tuple[Tensor, Count]:
        positions, after = super().take(mask, length, device)
        return positions, ForgetsToReorder(after.slots, after.real, after.ids, after.keep)

    def reorder(self, index: Tensor) -> Count:
        return self


class TakesNoSegmentsForOne(Count):
    def take(self, mask: Mask, length: int, device: torch.device) -> tuple[Tensor, Count]:
        if mask.key_ids is None:
            mask = mask & Mask.segments(torch.zeros(1, length, dtype=torch.long))
        positions, after = super().take(mask, length, device)
        return positions, TakesNoSegmentsForOne(after.slots, after.real, after.ids, after.keep)


class LeavesSegmentsToTorch(Count):
    def take(self, mask: Mask, length: int, device: torch.device) -> tuple[Tensor, Count]:
        if self.slots and (mask.key_ids is None) != (self.ids is None):
            raise RuntimeError("Tensors must have same number of dimensions")
        positions, after = super().take(mask, length, device)
        return positions, LeavesSegmentsToTorch(after.slots, after.real, after.ids, after.keep)


RIGHT = (Turns, TurnsHalfOfTheHead, TurnsNeighbours)
"""Correct ones, which every check of theirs must pass."""

RAISES = frozenset({LeavesTheLimitToTorch, LeavesSegmentsToTorch})
"""Their fault is that they raise; of all others something wrong must be seen."""

CAUGHT: tuple[tuple[type, str], ...] = (
    (TurnsKeysBackwards, "check_rope_is_relative"),
    (EndsAt2048, "check_rope_is_relative"),
    (LeavesAScale, "check_rope_keeps_norms"),
    (AddsWhereItShouldSubtract, "check_rope_keeps_norms"),
    (CountsFromOne, "check_rope_position_zero"),
    (SwapsSineAndCosine, "check_rope_position_zero"),
    (PairsTheOtherWay, "check_rope_pairing"),
    (HasAnotherBase, "check_rope_pairing"),
    (DoublesPositions, "check_rope_pairing"),
    (TurnsAlongTheHeads, "check_rope_is_relative"),
    (TurnsBackwards, "check_rope_pairing"),
    (TurnsTheLastHalf, "check_rope_partial"),
    (TurnsAllOfIt, "check_rope_partial"),
    (RoundsTheRest, "check_rope_partial"),
    (PositionsInHalf, "check_rope_keeps_precision"),
    (FrequenciesFollowTheModule, "check_rope_keeps_precision"),
    (AnglesByAProduct, "check_rope_keeps_precision"),
    (TurnsBySlots, "check_rope_follows_positions"),
    (PositionsOfTheFirstSample, "check_rope_follows_positions"),
    (KeepsItsFirstTable, "check_rope_follows_positions"),
    (SinesForTheHalf, "check_position_shapes"),
    (FlattensTheBatch, "check_position_shapes"),
    (VectorsBySlots, "check_position_has_one_vector"),
    (CentresTheSequence, "check_position_has_one_vector"),
    (PositionsInBfloat16, "check_position_tells_neighbours_apart"),
    (TwoShareAVector, "check_position_tells_neighbours_apart"),
    (ClampsPositions, "check_position_limit"),
    (BeginsAgain, "check_position_limit"),
    (LeavesTheLimitToTorch, "check_position_limit"),
    (EndsAt5000, "check_position_limit"),
    (SinesFirst, "check_position_waves"),
    (ExponentOfEachChannel, "check_position_waves"),
    (ExponentOfEachChannel, "check_position_is_relative"),
    (GrowsWithThePosition, "check_position_is_relative"),
    (StartsAHeadLate, "check_alibi_slopes"),
    (OneSequenceForAnyHeads, "check_alibi_slopes"),
    (ForgetsAbs, "check_alibi_decreases"),
    (OneSlopeForAll, "check_alibi_decreases"),
    (CountsFromTheFirstQuery, "check_alibi_is_relative"),
    (ScalesByTheLength, "check_alibi_is_relative"),
    (SlopesFollowTheModule, "check_alibi_keeps_precision"),
    (SlopesAreLearned, "check_alibi_keeps_precision"),
    (CountsSlots, "check_count_positions"),
    (DocumentsGoOn, "check_count_positions"),
    (BeginsEachChunkAtZero, "check_count_continues"),
    (CountsPaddingBetweenChunks, "check_count_continues"),
    (CountsInPlace, "check_count_is_a_value"),
    (ForgetsToReorder, "check_count_is_a_value"),
    (TakesNoSegmentsForOne, "check_count_refuses_half_said_segments"),
    (LeavesSegmentsToTorch, "check_count_refuses_half_said_segments"),
)
