"""What the figures of a comparison mean: the rows of its table, ratios, ties, and what to say.

The table on the terminal and the one on the page are both made of these rows.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from polyattn.measure.clock import Kind, Times, is_tie, noise, ratio
from polyattn.measure.results import (
    PASSES,
    UNFINISHED,
    Comparison,
    Learning,
    LengthRun,
    Measurement,
    Pass,
    Task,
    Timing,
)

LEAST_SPREAD = 0.02
"""Differences in learning below this (bits per byte, or share right) are ties."""

SAME_MEMORY = 0.01
"""Peaks within one per cent of each other are ties."""

EVERY_LENGTH = "all"

_NOTHING = "-"


@dataclass(frozen=True)
class Cell:
    """figure: the absolute value. ratio: beside it, "1" for the baseline, "tie" for a tie, "" if
    there is none. doubtful: measured in a run that is void."""

    figure: str = _NOTHING
    ratio: str = ""
    doubtful: bool = False

    def __str__(self) -> str:
        mark = "?" if self.doubtful else ""
        return f"{self.figure}{mark} {self.ratio}".rstrip()


@dataclass(frozen=True)
class Row:
    """One line of the table: a variant at a length, or a counting model. first: the variant's
    first line, which alone holds what it learnt. reason: why figures are missing."""

    name: str
    first: bool
    length: str = ""
    times: tuple[Cell, Cell] = (Cell(), Cell())
    peaks: tuple[Cell, Cell] = (Cell(), Cell())
    text: Cell = Cell("")
    copy: Cell = Cell("")
    reason: str = ""


def rows(comparison: Comparison) -> Iterator[Row]:
    """The table, variant by variant in the plan's order, then the counting models."""
    for name in comparison.plan.variants:
        learnt = {task: learning_cell(comparison, name, task) for task in ("text", "copy")}
        own = [
            (run, m) for run in comparison.lengths for m in run.measurements if m.variant == name
        ]
        reasons = {measurement.reason for _, measurement in own}
        if len(own) > 1 and len(reasons) == 1 and "" not in reasons:
            yield Row(name=name, first=True, length=EVERY_LENGTH, reason=reasons.pop())
            continue
        for number, (run, measurement) in enumerate(own):
            yield Row(
                name=name,
                first=number == 0,
                length=f"{run.length:,}",
                times=_cells(comparison, run, measurement, time_cell),
                peaks=_cells(comparison, run, measurement, peak_cell),
                text=learnt["text"] if number == 0 else Cell(""),
                copy=learnt["copy"] if number == 0 else Cell(""),
                reason=measurement.reason,
            )
        if not own:
            yield Row(name=name, first=True, reason="not reached")
    for ngram in comparison.ngrams:
        yield Row(
            name=f"n-gram, order {ngram.order}",
            first=True,
            times=(Cell(""), Cell("")),
            peaks=(Cell(""), Cell("")),
            text=_text_cell(comparison, ngram.bits),
        )


def judged_by(comparison: Comparison) -> Kind:
    """One thread's processor time, which repeats; with more threads, wall time."""
    return "processor" if comparison.plan.threads == 1 else "wall"


def as_times(timing: Timing) -> Times:
    return Times(wall=list(timing.wall), processor=list(timing.processor))


def find(run: LengthRun, name: str) -> Measurement | None:
    return next((m for m in run.measurements if m.variant == name), None)


def best_seconds(comparison: Comparison, timing: Timing) -> float:
    return as_times(timing).best(judged_by(comparison))


def time_ratio(
    comparison: Comparison, run: LengthRun, name: str, kind: Pass
) -> tuple[float, float] | None:
    """(ratio to the baseline, noise floor) of a variant at a length, None without a baseline."""
    beside, base = run.run(kind), find(run, comparison.plan.baseline)
    own = find(run, name)
    if beside is None or beside.again is None or base is None or own is None:
        return None
    first, timing = base.timing(kind), own.timing(kind)
    if first is None or timing is None:
        return None
    clock = judged_by(comparison)
    floor = noise(as_times(first), as_times(beside.again), clock)
    return ratio(as_times(timing), as_times(first), clock), floor


def time_cell(comparison: Comparison, run: LengthRun, own: Measurement, kind: Pass) -> Cell:
    timing, beside = own.timing(kind), run.run(kind)
    if timing is None or beside is None:
        return Cell()
    figure = milliseconds(best_seconds(comparison, timing))
    compared = time_ratio(comparison, run, own.variant, kind)
    return Cell(figure, _beside(comparison, own.variant, compared), beside.void)


def peak_cell(comparison: Comparison, run: LengthRun, own: Measurement, kind: Pass) -> Cell:
    timing, base = own.timing(kind), find(run, comparison.plan.baseline)
    if timing is None:
        return Cell()
    first = base.timing(kind) if base else None
    compared = (timing.peak / first.peak, SAME_MEMORY) if first and first.peak else None
    return Cell(megabytes(timing.peak), _beside(comparison, own.variant, compared))


def learning_cell(comparison: Comparison, name: str, task: Task) -> Cell:
    """Mean over the planned seeds. The baseline's further seeds only say how much seeds matter."""
    value = learnt(comparison, name, task)
    if value is None:
        return Cell(_without_a_value(comparison, name, task))
    if task == "text":
        return _text_cell(comparison, value, name)
    return Cell(f"{value:.2f}", _learning_ratio(comparison, value, name, task))


def learnt(comparison: Comparison, name: str, task: Task) -> float | None:
    values = [
        run.final
        for run in runs_of(comparison, name, task)
        if run.seed in comparison.plan.seeds and run.final is not None
    ]
    return statistics.fmean(values) if values else None


def runs_of(comparison: Comparison, name: str, task: Task) -> list[Learning]:
    return [run for run in comparison.learning if run.variant == name and run.task == task]


def learning_noise(comparison: Comparison, task: Task) -> float:
    """Spread of the baseline over all its seeds, at least ``LEAST_SPREAD``."""
    runs = runs_of(comparison, comparison.plan.baseline, task)
    values = [run.final for run in runs if run.final is not None]
    return max(LEAST_SPREAD, max(values) - min(values)) if values else LEAST_SPREAD


def milliseconds(seconds: float) -> str:
    return f"{_digits(seconds * 1e3)} ms"


def megabytes(size: int) -> str:
    return f"{_digits(size / 2**20)} MB"


def _digits(value: float) -> str:
    """Three digits that count, or all before the point."""
    decimals = 0 if value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:,.{decimals}f}"


def arithmetic_rate(comparison: Comparison) -> float | None:
    """Best rate of the yardstick over the whole run, in operations a second."""
    wall = judged_by(comparison) == "wall"
    besides = [run.run(kind) for run in comparison.lengths for kind in PASSES]
    samples = [
        sample
        for beside in besides
        if beside is not None
        for sample in (beside.yardstick_wall if wall else beside.yardstick)
    ]
    return 2 * 1024**3 / min(samples) if samples else None


def _cells(
    comparison: Comparison,
    run: LengthRun,
    own: Measurement,
    make: Callable[[Comparison, LengthRun, Measurement, Pass], Cell],
) -> tuple[Cell, Cell]:
    forward, backward = (make(comparison, run, own, kind) for kind in PASSES)
    return forward, backward


def _beside(comparison: Comparison, name: str, compared: tuple[float, float] | None) -> str:
    if compared is None:
        return ""
    if name == comparison.plan.baseline:
        return "1"
    quotient, floor = compared
    return "tie" if is_tie(quotient, floor) else _times(quotient)


def _times(quotient: float) -> str:
    digits = 0 if quotient >= 99.5 else 1 if quotient >= 9.95 else 2
    return f"{quotient:.{digits}f}x"


def _text_cell(comparison: Comparison, bits: float, name: str = "") -> Cell:
    return Cell(f"{bits:.2f}", _learning_ratio(comparison, bits, name, "text"))


def _learning_ratio(comparison: Comparison, value: float, name: str, task: Task) -> str:
    base = learnt(comparison, comparison.plan.baseline, task)
    if not base:
        return ""
    if name == comparison.plan.baseline:
        return "1"
    tie = abs(value - base) <= learning_noise(comparison, task)
    return "tie" if tie else _times(value / base)


def _without_a_value(comparison: Comparison, name: str, task: Task) -> str:
    reasons = {run.reason for run in runs_of(comparison, name, task)}
    return "failed" if reasons - {"", UNFINISHED} else "cut" if reasons else _NOTHING
