"""How many floors a call costs, in one process and by turns.

A floor is the arithmetic of a call over the rate of a float32 product of two 1024-square matrices,
measured between the call's own runs with the same threads. Judged on the processor time of one
thread by the ratio of minima, with the wall time of two threads beside it; a run whose floor moved
by more than 1.25 between its halves is void, and is taken again.

Sizes: H heads, D head width, N length. Times are in seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import pytest
import torch

from polyattn.measure.clock import VOID_ABOVE, Kind, drift, interleave
from polyattn.measure.worker import allocator_settings

SIDE = 1024
BACKWARD = 3.5
"""A call with its gradients is 3.5 times the arithmetic of the call."""

HEADS, WIDTH = 8, 64
TRIES = 4


def softmax_operations(pairs: int, heads: int = HEADS, width: int = WIDTH) -> int:
    """Operations of softmax attention over so many visible pairs of a head: 4 H D for each."""
    return 4 * heads * width * pairs


def pairs_in_window(length: int, keys: int) -> int:
    """Visible pairs of a causal window of ``keys`` keys over ``length`` positions."""
    keys = min(keys, length)
    return length * keys - keys * (keys - 1) // 2


@dataclass(frozen=True)
class InFloors:
    """``best`` is the ratio of minima, which is judged; ``typical`` that of medians."""

    threads: int
    clock: Kind
    best: float
    typical: float
    seconds: float
    floor_seconds: float
    floor_drift: float
    rounds: int

    @property
    def void(self) -> bool:
        return self.floor_drift > VOID_ABOVE


@contextmanager
def threads(number: int) -> Iterator[None]:
    """That many threads inside products, and as many as before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def many(call: Callable[[], object], times: int = 200) -> Callable[[], None]:
    """A call is too short for the clock, so it is timed by the hundred."""

    def all_of_them() -> None:
        for _ in range(times):
            call()

    return all_of_them


def in_floors(
    call: Callable[[], object], operations: float, *, number: int = 1, seconds: float = 4.0
) -> InFloors:
    """Measure ``call``, of so many operations, by turns with the floor.

    One thread is judged on its processor time; with more, the calling thread does a share of the
    work, so wall time is taken. The last of ``TRIES`` runs is given, void or not.
    """
    a, b, out = (torch.randn(SIDE, SIDE) for _ in range(3))
    kind: Kind = "processor" if number == 1 else "wall"
    with threads(number):
        for _ in range(TRIES):
            times = interleave(
                {
                    "floor": lambda: torch.mm(a, b, out=out),
                    "call": call,
                    "floor again": lambda: torch.mm(a, b, out=out),
                },
                seconds=seconds,
            )
            floors = [
                one * operations / (2 * SIDE**3)
                for pair in zip(times["floor"].of(kind), times["floor again"].of(kind), strict=True)
                for one in pair
            ]
            calls = times["call"]
            found = InFloors(
                threads=number,
                clock=kind,
                best=calls.best(kind) / min(floors),
                typical=calls.median(kind) / sorted(floors)[len(floors) // 2],
                seconds=calls.best(kind),
                floor_seconds=min(floors),
                floor_drift=drift(floors),
                rounds=len(calls.of(kind)),
            )
            if not found.void:
                break
    return found


def judge(benchmark: Any, call: Callable[[], object], operations: float, bar: float) -> None:
    """Record a call's floors with one thread and with two, and hold one thread to ``bar``."""
    found = in_floors(call, operations)
    benchmark.extra_info.update(bar=bar, dtype="float32", device="cpu", torch=torch.__version__)
    benchmark.extra_info.update(allocator_settings())
    benchmark.extra_info["one_thread"] = asdict(found)
    benchmark.extra_info["two_threads"] = asdict(in_floors(call, operations, number=2))
    with threads(1):
        benchmark.pedantic(call, rounds=3)
    if found.void:
        pytest.skip(f"void: the floor itself moved by {found.floor_drift:.2f}")
    assert found.best <= bar, f"{found.best:.2f} floors, expected at most {bar}"
