"""L. Threads: one module that answers several calls at once answers each as if it were alone."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from polyattn.testing.results import proves
from polyattn.testing.subjects.sequence import Instance, Subject
from polyattn.testing.tools.cases import SQUARE, Sample
from polyattn.testing.tools.compare import output_tolerance
from polyattn.testing.tools.numerics import compare

THREADS = 8
CALLS = 3
"""By each thread."""


@proves(
    "Eight threads that share one module in evaluation get what one after the other gets.",
    causes=(
        "something of the call kept on the module between two lines of forward",
        "a cache that is read while another thread replaces it",
        "a buffer for intermediate results that all calls share",
    ),
)
def check_threads(subject: Subject) -> None:
    lengths = [3 + 4 * i for i in range(THREADS)]
    shapes = [subject.fit(SQUARE.of(queries=n, keys=n)) for n in lengths]
    samples = [subject.draw(shape, seed=i) for i, shape in enumerate(shapes)]
    alone = [subject.at(shape)(sample) for shape, sample in zip(shapes, samples, strict=True)]
    shared = subject.at(shapes[0])
    start = threading.Barrier(THREADS)

    def work(sample: Sample) -> list[Tensor]:
        start.wait()
        return [_answer(shared, sample) for _ in range(CALLS)]

    with ThreadPoolExecutor(THREADS) as pool:
        together = list(pool.map(work, samples))
    for sample, want, outs in zip(samples, alone, together, strict=True):
        for got in outs:
            compare(
                f"the output while {THREADS - 1} other threads call the same module",
                got,
                want,
                tolerance=output_tolerance(sample),
                given=sample.describe(),
            )


def _answer(instance: Instance, sample: Sample) -> Tensor:
    """One call, in which the other threads get their turn after every line of Python."""

    def turn(frame: FrameType, event: str, argument: object) -> Callable[..., Any]:
        if event == "line":
            time.sleep(1e-6)
        return turn

    before = sys.gettrace()
    sys.settrace(turn)
    try:
        with torch.no_grad():
            return instance(sample)
    finally:
        sys.settrace(before)
