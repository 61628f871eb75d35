"""What has to be said beside the figures: what is missing and why, what cannot be trusted, what a
tie is, how far the learning models see, and whether a full run reached its aim."""

from __future__ import annotations

from collections.abc import Iterator

from polyattn.measure.plan import copy_reach
from polyattn.measure.results import PASSES, Comparison, Pass
from polyattn.measure.summary import find, learning_noise, learnt, runs_of, time_ratio

_NAMES: dict[Pass, str] = {"forward": "forward", "backward": "forward with backward"}


def remarks(comparison: Comparison) -> Iterator[str]:
    """One line each, in the order of their weight."""
    if not comparison.complete:
        yield "This run was interrupted: what follows is what it had measured until then."
    yield from _failures(comparison)
    yield from _doubts(comparison)
    yield from _aim(comparison)
    yield from comparison.notes
    yield from _sights(comparison)
    yield from _ties(comparison)


def _failures(comparison: Comparison) -> Iterator[str]:
    for name in comparison.plan.variants:
        own = [(run.length, m.reason) for run in comparison.lengths if (m := find(run, name))]
        reasons = {reason for _, reason in own}
        if len(reasons) == 1 and "" not in reasons:
            yield f"{name}: {reasons.pop()}"
        else:
            for length, reason in own:
                if reason:
                    yield f"{name}, length {length:,}: {reason}"
        for learning in comparison.learning:
            if learning.variant == name and learning.reason:
                yield f"{name}, learning {learning.task}, seed {learning.seed}: {learning.reason}"


def _doubts(comparison: Comparison) -> Iterator[str]:
    for run in comparison.lengths:
        for kind in PASSES:
            beside = run.run(kind)
            if beside is not None and beside.void:
                yield (
                    f"length {run.length:,}, {_NAMES[kind]}: void, marked '?'. The speed of the "
                    f"machine changed by a factor of {beside.drift:.2f} meanwhile; "
                    "run again while nothing else runs."
                )


def _aim(comparison: Comparison) -> Iterator[str]:
    plan = comparison.plan
    reached = learnt(comparison, plan.baseline, "text")
    if plan.aim is None or reached is None:
        return
    verdict = "reached" if reached <= plan.aim else "missed"
    yield (
        f"Aim {verdict}: {plan.baseline} learnt the text to {reached:.2f} bits per byte; "
        f"the aim is {plan.aim} or less."
    )


def _sights(comparison: Comparison) -> Iterator[str]:
    told = set()
    for learning in comparison.learning:
        if learning.options and learning.variant not in told:
            told.add(learning.variant)
            given = ", ".join(f"{key}={value}" for key, value in learning.options.items())
            reach = copy_reach(comparison.plan.tasks["copy"].context)
            yield (
                f"{learning.variant} learns with {given}: all its layers together see "
                f"{learning.sight} tokens back, and the copy task asks for {reach}."
            )


def _ties(comparison: Comparison) -> Iterator[str]:
    base = comparison.plan.baseline
    floors = [
        (found[1], run.length, kind)
        for run in comparison.lengths
        for kind in PASSES
        if (found := time_ratio(comparison, run, base, kind)) is not None
    ]
    if floors:
        low, high = min(f[0] for f in floors), max(f[0] for f in floors)
        yield (
            f"Times within the spread of {base} against itself are ties: "
            f"{low:.1%} to {high:.1%} in this run, by length and pass."
        )
    seeds = sum(run.final is not None for run in runs_of(comparison, base, "text"))
    if seeds > 1:
        yield (
            f"Learning within the spread of {base} over {seeds} seeds is a tie: "
            f"{learning_noise(comparison, 'text'):.2f} bits per byte on the text, "
            f"{learning_noise(comparison, 'copy'):.2f} of the copy."
        )
