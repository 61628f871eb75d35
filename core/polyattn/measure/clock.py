"""Timing that survives a busy machine.

On a shared machine matrix-product rates swing by a factor of two within seconds, so nothing is
timed on its own: candidates take turns, round after round, and what is reported is a ratio of
minima within one run. The processor time of the calling thread is kept beside wall time, since on a
loaded machine only that repeats. A run during which the yardstick itself changed is void.
"""

from __future__ import annotations

import gc
import itertools
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

Kind = Literal["processor", "wall"]

VOID_ABOVE = 1.25
"""How far the yardstick's minimum may move between the halves of a run before the run is void."""

_PARTS = 5

LEAST_NOISE = 0.01
"""Differences below one per cent are ties whatever the run says of itself."""


class Clock(Protocol):
    """Two readings in nanoseconds. Tests give a clock of their own."""

    def wall(self) -> int: ...
    def processor(self) -> int: ...


class SystemClock:
    """The machine's own clock. ``processor`` counts the calling thread alone: with more threads
    than one it is a share of the work, and wall time has to be judged instead."""

    def wall(self) -> int:
        return time.perf_counter_ns()

    def processor(self) -> int:
        return time.thread_time_ns()


@dataclass
class Times:
    """The samples of one candidate in seconds, one per round, in the order of the rounds."""

    wall: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)

    def of(self, kind: Kind) -> list[float]:
        return self.processor if kind == "processor" else self.wall

    def best(self, kind: Kind) -> float:
        return min(self.of(kind))

    def median(self, kind: Kind) -> float:
        return statistics.median(self.of(kind))


Candidate = Callable[[], object]


def interleave(
    candidates: Mapping[str, Candidate],
    *,
    seconds: float,
    least: int = 3,
    most: int = 50,
    warm: bool = False,
    clock: Clock | None = None,
    tick: Callable[[int], None] = lambda done: None,
) -> dict[str, Times]:
    """Time the candidates in turn until ``seconds`` of wall time are spent.

    Each candidate runs once beforehand, unless all are ``warm`` already. Who starts a round changes
    with every round, so that nobody always runs behind the same neighbour. At least ``least``
    rounds (two, for halves to compare), at most ``most``. ``tick`` hears the number of finished
    rounds.
    """
    clock = clock or SystemClock()
    names = list(candidates)
    for name in names if not warm else ():
        candidates[name]()
    times = {name: Times() for name in names}
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        start = clock.wall()
        for done in range(most):
            if done >= max(2, least) and (clock.wall() - start) / 1e9 >= seconds:
                break
            turn = done % len(names)
            for name in names[turn:] + names[:turn]:
                _sample(candidates[name], times[name], clock)
            tick(done + 1)
    finally:
        if collecting:
            gc.enable()
    return times


def _sample(candidate: Candidate, times: Times, clock: Clock) -> None:
    wall, processor = clock.wall(), clock.processor()
    result = candidate()
    spent = clock.processor() - processor, clock.wall() - wall
    # Freed after the clock has stopped: giving memory back is not the candidate's work.
    del result
    times.processor.append(spent[0] / 1e9)
    times.wall.append(spent[1] / 1e9)


def ratio(candidate: Times, base: Times, kind: Kind) -> float:
    """Ratio of minima; above 1 the candidate is slower than the base."""
    return candidate.best(kind) / base.best(kind)


def noise(base: Times, again: Times, kind: Kind) -> float:
    """How much the base differs from itself, as a fraction: the floor below which a difference
    between two candidates says nothing.

    The larger of two views of the same work timed twice in each round: the ratio of minima over
    the whole run, and what that ratio usually is in a part of it (a fifth of the rounds, a single
    round where there are few); never below ``LEAST_NOISE``.
    """
    parts = zip(_parts(again.of(kind)), _parts(base.of(kind)), strict=True)
    within = statistics.median(abs(math.log(min(a) / min(b))) for a, b in parts)
    whole = abs(math.log(ratio(again, base, kind)))
    return max(LEAST_NOISE, math.expm1(max(within, whole)))


def _parts(samples: list[float]) -> list[list[float]]:
    """The samples in at most five parts of about equal length, in order."""
    count = min(_PARTS, len(samples))
    edges = [round(i * len(samples) / count) for i in range(count + 1)]
    return [samples[start:end] for start, end in itertools.pairwise(edges)]


def is_tie(quotient: float, floor: float) -> bool:
    """Whether a ratio lies within the noise ``floor`` on either side of 1."""
    return abs(math.log(quotient)) <= math.log1p(floor)


def drift(yardstick: Sequence[float]) -> float:
    """Ratio of the larger to the smaller minimum of the two halves of a run, at least 1."""
    if len(yardstick) < 2:
        raise ValueError(f"expected two samples or more to compare halves, got {len(yardstick)}")
    middle = len(yardstick) // 2
    first, second = min(yardstick[:middle]), min(yardstick[middle:])
    return max(first, second) / min(first, second)


def is_void(yardstick: Sequence[float], limit: float = VOID_ABOVE) -> bool:
    """Whether the machine changed its speed during a run: the yardstick's halves differ by more
    than ``limit``, and nothing measured beside it can be believed."""
    return drift(yardstick) > limit


def growth(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """Exponent of the growth of ``seconds`` with ``sizes``: the slope of a straight line through
    the logarithms. Read it from sizes whose tensors are larger than the last-level cache."""
    if len(sizes) != len(seconds) or len(sizes) < 2:
        raise ValueError(f"expected two or more pairs, got {len(sizes)} and {len(seconds)} values")
    fit = statistics.linear_regression([math.log(s) for s in sizes], [math.log(t) for t in seconds])
    return fit.slope


def growth_is_void(copy_exponent: float) -> bool:
    """Whether lengths were a poor choice for reading growth: a plain copy, which is linear by
    nature, must itself show an exponent from 0.9 to 1.1."""
    return not 0.9 <= copy_exponent <= 1.1
