"""What each part of a mask means, as a question about one query and one key, in plain Python.

Shares nothing with the code that lowers masks: it is what that code is compared with.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from polyattn.mask import Mask
from polyattn.testing.tools.cases import normal

BATCH, HEADS = 2, 3


@dataclasses.dataclass(frozen=True)
class MaskSubject:
    """A class of masks: ``Mask``, or anything with its constructors and methods."""

    name: str
    masks: type[Mask]


@dataclasses.dataclass(frozen=True)
class At:
    """One query and one key of a call."""

    b: int
    h: int
    i: int
    j: int
    queries: int
    keys: int

    @property
    def own(self) -> int:
        """The position of the query among the keys."""
        return self.i + self.keys - self.queries


@dataclasses.dataclass(frozen=True)
class Meaning:
    """One part: how it is made, whom it lets see, what it adds to the logits.

    ordered: it counts positions, and so needs L <= S.
    """

    text: str
    make: Callable[[type[Mask]], Mask]
    sees: Callable[[At], bool] = lambda at: True
    adds: Callable[[At], float] = lambda at: 0.0
    ordered: bool = False


Draw = Callable[[int, int, int], Meaning]
"""(L, S, seed) -> a part."""


def _number(seed: int, low: int, high: int) -> int:
    """An integer from low to high."""
    generator = torch.Generator().manual_seed(seed)
    return int(torch.randint(low, high + 1, (), generator=generator))


def _causal(queries: int, keys: int, seed: int) -> Meaning:
    prefix = _number(seed, 0, max(1, keys // 2))
    return Meaning(
        f"causal, prefix {prefix}",
        lambda masks: masks.causal(prefix=prefix) if prefix else masks.causal(),
        lambda at: at.j <= at.own or at.j < prefix,
        ordered=True,
    )


def _window(queries: int, keys: int, seed: int) -> Meaning:
    left, right = _number(seed, -1, 4), _number(seed + 500, -1, 3)
    if left < 0 and right < 0:
        right = 0
    sides = (None if left < 0 else left, None if right < 0 else right)
    return Meaning(
        f"window {sides}",
        lambda masks: masks.window(*sides),
        lambda at: (left < 0 or at.j >= at.own - left) and (right < 0 or at.j <= at.own + right),
        ordered=True,
    )


def _padding(queries: int, keys: int, seed: int) -> Meaning:
    keep = normal(BATCH, keys, seed=seed) > -0.4
    table = keep.tolist()
    return Meaning("padding", lambda masks: masks.padding(keep), lambda at: table[at.b][at.j])


def _lengths(queries: int, keys: int, seed: int) -> Meaning:
    lengths = [_number(seed + 7 * b, 0, keys) for b in range(BATCH)]
    return Meaning(
        f"lengths {lengths}",
        lambda masks: masks.lengths(lengths, keys),
        lambda at: at.j < lengths[at.b],
    )


def _ids(length: int, seed: int) -> Tensor:
    return (normal(BATCH, length, seed=seed) * 1.2).round().long()


def _segments(queries: int, keys: int, seed: int) -> Meaning:
    ids = _ids(keys, seed)
    table = ids.tolist()
    return Meaning(
        "segments",
        lambda masks: masks.segments(ids),
        lambda at: table[at.b][at.own] == table[at.b][at.j],
        ordered=True,
    )


def _pairs(queries: int, keys: int, seed: int) -> Meaning:
    asks, has = _ids(queries, seed), _ids(keys, seed + 900)
    first, second = asks.tolist(), has.tolist()
    return Meaning(
        "segments with two sets of ids",
        lambda masks: masks.segments(asks, has),
        lambda at: first[at.b][at.i] == second[at.b][at.j],
    )


def _documents(queries: int, keys: int, seed: int) -> Meaning:
    cuts = [_number(seed + b, 0, keys - 1) for b in range(BATCH)]
    rows = [[cut, keys - cut] if cut else [keys] for cut in cuts]
    return Meaning(
        f"documents {rows}",
        lambda masks: masks.documents(rows),
        lambda at: (at.own < cuts[at.b]) == (at.j < cuts[at.b]),
        ordered=True,
    )


def _dense(queries: int, keys: int, seed: int) -> Meaning:
    keep = normal(BATCH, HEADS, queries, keys, seed=seed) > -0.5
    table = keep.tolist()
    return Meaning(
        "dense (B, H, L, S)",
        lambda masks: masks.dense(keep),
        lambda at: table[at.b][at.h][at.i][at.j],
    )


def _flat(queries: int, keys: int, seed: int) -> Meaning:
    keep = normal(queries, keys, seed=seed) > -0.5
    table = keep.tolist()
    return Meaning("dense (L, S)", lambda masks: masks.dense(keep), lambda at: table[at.i][at.j])


def _where(queries: int, keys: int, seed: int) -> Meaning:
    step = _number(seed, 2, 4)
    return Meaning(
        f"where, step {step}",
        lambda masks: masks.where(lambda b, h, i, j: (b + 2 * h + i + 3 * j) % step != 0),
        lambda at: (at.b + 2 * at.h + at.i + 3 * at.j) % step != 0,
    )


def _bias(queries: int, keys: int, seed: int) -> Meaning:
    values = normal(BATCH, HEADS, queries, keys, seed=seed).float()
    values = values.masked_fill(normal(BATCH, HEADS, queries, keys, seed=seed + 1) < -1, -torch.inf)
    table = values.double().tolist()
    return Meaning(
        "bias",
        lambda masks: masks.bias(values),
        lambda at: table[at.b][at.h][at.i][at.j] != -math.inf,
        lambda at: table[at.b][at.h][at.i][at.j],
    )


def _alibi(queries: int, keys: int, seed: int) -> Meaning:
    slopes = normal(HEADS, seed=seed).abs().float()
    table = slopes.double().tolist()
    return Meaning(
        "alibi",
        lambda masks: masks.alibi(slopes),
        adds=lambda at: -table[at.h] * abs(at.own - at.j),
        ordered=True,
    )


KINDS: Mapping[str, Draw] = {
    "causal": _causal,
    "window": _window,
    "padding": _padding,
    "lengths": _lengths,
    "segments": _segments,
    "pairs": _pairs,
    "documents": _documents,
    "dense": _dense,
    "flat": _flat,
    "where": _where,
    "bias": _bias,
    "alibi": _alibi,
}
"""Every kind of part, by a name."""


def drawn(seed: int, queries: int, keys: int, most: int = 4) -> list[Meaning]:
    """Two parts or more of unlike kinds; at most one of the three that name segments."""
    seed = 1009 * seed + 101 * queries + keys
    names = [name for name in KINDS if queries <= keys or not KINDS[name](1, 1, 0).ordered]
    order = torch.randperm(len(names), generator=torch.Generator().manual_seed(seed)).tolist()
    chosen: list[str] = []
    for name in (names[n] for n in order):
        segments = {"segments", "pairs", "documents"}
        if not (name in segments and segments & set(chosen)):
            chosen.append(name)
    count = _number(seed + 3, 2, most)
    return [KINDS[name](queries, keys, seed + 11 * n) for n, name in enumerate(chosen[:count])]


def meant_keep(meanings: list[Meaning], queries: int, keys: int) -> Tensor:
    """(B, H, L, S), asked pair by pair."""
    return _table(queries, keys, lambda at: all(m.sees(at) for m in meanings)).bool()


def meant_bias(meanings: list[Meaning], queries: int, keys: int) -> Tensor:
    """(B, H, L, S) in float64."""
    return _table(queries, keys, lambda at: sum(m.adds(at) for m in meanings))


def _table(queries: int, keys: int, ask: Callable[[At], float]) -> Tensor:
    places = itertools.product(range(BATCH), range(HEADS), range(queries), range(keys))
    numbers = [float(ask(At(*place, queries, keys))) for place in places]
    return torch.tensor(numbers, dtype=torch.float64).reshape(BATCH, HEADS, queries, keys)
