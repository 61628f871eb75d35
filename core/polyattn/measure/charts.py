"""The charts of a comparison, as SVG that can stand in a page.

Drawn by matplotlib, which the extra ``report`` brings; see ``drawing`` for the pencil.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from polyattn.errors import Unavailable
from polyattn.measure.drawing import REFERENCE, Chart, line_of, make_chart, note, settings
from polyattn.measure.plan import SYMBOLS, copy_reach
from polyattn.measure.results import PASSES, Comparison, Learning, Pass, Task
from polyattn.measure.summary import arithmetic_rate, best_seconds, runs_of


def charts(comparison: Comparison) -> Iterator[Chart]:
    """Times and memory against length, then learning curves; those without data are left out.

    Raises: Unavailable, with the way out, where matplotlib is not installed.
    """
    try:
        from matplotlib import rc_context
    except ImportError:
        raise Unavailable(
            "matplotlib is not installed; `pip install 'polyattn[report]'` brings it, and "
            "compare.json holds every figure meanwhile"
        ) from None
    with rc_context(settings()):
        for kind in PASSES:
            yield from _time_chart(comparison, kind)
        for kind in PASSES:
            yield from _memory_chart(comparison, kind)
        yield from _text_chart(comparison)
        yield from _copy_chart(comparison)


_TIMES: dict[Pass, tuple[str, str]] = {
    "forward": ("Forward pass", "milliseconds, without gradients"),
    "backward": ("Forward with backward", "milliseconds, gradients of every input"),
}
_PEAKS: dict[Pass, tuple[str, str]] = {
    "forward": ("Memory of the forward pass", "peak megabytes above the inputs"),
    "backward": ("Memory with backward", "peak megabytes above the inputs"),
}
_ARITHMETIC: dict[Pass, float] = {"forward": 1.0, "backward": 3.5}
"""Operations of a pass in units of the forward pass."""


def _time_chart(comparison: Comparison, kind: Pass) -> Iterator[Chart]:
    title, unit = _TIMES[kind]

    def draw(axes: Any) -> None:
        _against_length(axes, comparison, kind, lambda t: best_seconds(comparison, t) * 1e3)
        rate, plan = arithmetic_rate(comparison), comparison.plan
        if rate:
            pairs = [n * (n + 1) / 2 for n in plan.lengths]
            work = [4 * plan.heads * plan.head_dim * _ARITHMETIC[kind] * p for p in pairs]
            floor = [operations / rate * 1e3 for operations in work]
            axes.plot(plan.lengths, floor, label="bare arithmetic", **REFERENCE)

    if _measured(comparison, kind):
        caption = (
            "Both axes are logarithmic. Bare arithmetic: the products of every visible pair at the "
            "rate of a large matrix product."
        )
        yield make_chart(title, unit, caption, "tokens", draw)


def _memory_chart(comparison: Comparison, kind: Pass) -> Iterator[Chart]:
    title, unit = _PEAKS[kind]

    def draw(axes: Any) -> None:
        _against_length(axes, comparison, kind, lambda t: t.peak / 2**20)
        plan = comparison.plan
        query = [plan.heads * plan.head_dim * 4 * n / 2**20 for n in plan.lengths]
        axes.plot(plan.lengths, query, label="size of q", **REFERENCE)

    if _measured(comparison, kind):
        caption = "The most that tensors held at one moment, the output included."
        yield make_chart(title, unit, caption, "tokens", draw)


def _against_length(
    axes: Any, comparison: Comparison, kind: Pass, value: Callable[[Any], float]
) -> None:
    from matplotlib.ticker import LogLocator

    for name in comparison.plan.variants:
        points = [
            (run.length, value(timing))
            for run in comparison.lengths
            for measurement in run.measurements
            if measurement.variant == name and (timing := measurement.timing(kind)) is not None
        ]
        if points:
            axes.plot(*zip(*points, strict=True), **line_of(comparison, name))
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    lengths = comparison.plan.lengths
    axes.set_xticks(lengths, [f"{n:,}" for n in lengths])
    axes.minorticks_off()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.12g}")


def _text_chart(comparison: Comparison) -> Iterator[Chart]:
    drawn = _curves(comparison, "text")
    if not drawn:
        return

    def draw(axes: Any) -> None:
        _learning_lines(axes, comparison, drawn)
        steps = max(run.points[-1].step for run in drawn)
        settled = [p.value for run in drawn for p in run.points if p.step > steps * 0.15]
        heights = [*settled, *(ngram.bits for ngram in comparison.ngrams)]
        if heights:
            margin = 0.06 * (max(heights) - min(heights)) + 0.05
            axes.set_ylim(min(heights) - margin, max(heights) + margin)
        for ngram in comparison.ngrams:
            axes.axhline(ngram.bits, **REFERENCE)
            note(axes, steps, ngram.bits, f"n-gram, order {ngram.order}")

    caption = (
        "Lower is better. Dotted: what counting byte sequences reaches on the same held-out bytes."
    )
    if len({run.seed for run in drawn}) > 1:
        caption += " Thin lines are further seeds."
    yield make_chart("Learning the text", "held-out bits per byte", caption, "training steps", draw)


def _copy_chart(comparison: Comparison) -> Iterator[Chart]:
    drawn = _curves(comparison, "copy")
    if not drawn:
        return

    def draw(axes: Any) -> None:
        _learning_lines(axes, comparison, drawn)
        axes.set_ylim(-0.04, 1.04)
        axes.axhline(1 / SYMBOLS, **REFERENCE)
        note(axes, max(run.points[-1].step for run in drawn), 1 / SYMBOLS, "guessing")

    reach = copy_reach(comparison.plan.tasks["copy"].context)
    caption = (
        f"Higher is better; a line ends where the task is solved. Each answer lies "
        f"{reach} tokens back, farther than a narrow window sees through all layers."
    )
    yield make_chart("Copying from afar", "share predicted right", caption, "training steps", draw)


def _curves(comparison: Comparison, task: Task) -> list[Learning]:
    runs = [run for name in comparison.plan.variants for run in runs_of(comparison, name, task)]
    return [run for run in runs if len(run.points) > 1]


def _learning_lines(axes: Any, comparison: Comparison, runs: list[Learning]) -> None:
    first = comparison.plan.seeds[0]
    for run in runs:
        points = [(point.step, point.value) for point in run.points]
        line = line_of(comparison, run.variant)
        line["markevery"] = max(1, len(points) // 8)
        if run.seed != first:
            line.update(linewidth=0.9, markersize=3, alpha=0.55, label=None)
        axes.plot(*zip(*points, strict=True), **line)


def _measured(comparison: Comparison, kind: Pass) -> bool:
    return any(m.timing(kind) for run in comparison.lengths for m in run.measurements)
