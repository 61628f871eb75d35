"""G. Local attention: the window to the key, and lengths that fit no block."""

from __future__ import annotations

import torch
from torch import Tensor

from polyattn.capabilities import Part
from polyattn.mask import Mask
from polyattn.testing.checks.causality import heard_in, heard_where_preferred, row_gradients
from polyattn.testing.results import Mismatch, Seen, proves
from polyattn.testing.subjects.sequence import Instance, Subject
from polyattn.testing.tools.cases import Sample, Shape
from polyattn.testing.tools.compare import against_definition, output_tolerance
from polyattn.testing.tools.masks import combine, needed
from polyattn.testing.tools.numerics import compare, need_finite


@proves(
    "Query i sees the keys from i - left to i + right, every one of them and no other.",
    causes=(
        "a window of W read as W, W + 1 or 2 W + 1 keys",
        "a window rounded to whole blocks",
        "an off-by-one at the first or last rows",
    ),
    claim="masks (window)",
)
def check_window_support_by_gradient(
    subject: Subject, left: int, right: int | None, length: int, by: str = "mask"
) -> None:
    """by: ``mask``, a window asked for in the call, or ``options``, one that it was built with."""
    shape = subject.fit(Shape(name="", batch=1, heads=1, queries=length, keys=length))
    sample, instance = subject.draw(shape), subject.at(shape)
    if by == "mask":
        others = subject.capabilities.requires - {"window"}
        mask = Mask.causal() if "causal" in others else Mask.full()
        sample = sample.masked(mask & Mask.window(left, right))
    visible = _band(shape, left, right)
    if "causal" in sample.mask.parts:
        visible = visible.tril()
    if by == "mask":
        inside = instance.pattern(shape.queries, shape.keys)
        visible = visible if inside is None else visible & inside
    rows = row_gradients(instance, sample)
    for i, grads in enumerate(rows):
        need_finite(f"the gradient of output {i} to v", grads["v"], sample.describe())
    heard = heard_in(rows, shape.heads)
    if not subject.hears_all:
        heard |= heard_where_preferred(instance, sample, visible.expand_as(heard) & ~heard)
    for i in range(shape.queries):
        seen = heard[0, 0, i]
        if not torch.equal(seen, visible[i]):
            raise Mismatch(
                Seen(
                    what=f"output {i} of {shape.queries} sees the keys {_runs(seen)}, expected "
                    f"{_runs(visible[i])}, for {left} keys to the left and {right} to the right",
                    given=sample.describe(),
                )
            )


def _band(shape: Shape, left: int, right: int | None) -> Tensor:
    distance = torch.arange(shape.keys) - torch.arange(shape.queries)[:, None]
    return (distance >= -left) & (distance <= (shape.keys if right is None else right))


def _runs(seen: Tensor) -> str:
    """``2-5, 9`` for the true positions."""
    runs: list[list[int]] = []
    for j in seen.nonzero().flatten().tolist():
        if runs and runs[-1][1] == j - 1:
            runs[-1][1] = j
        else:
            runs.append([j, j])
    return ", ".join(f"{a}-{b}" if a != b else str(a) for a, b in runs) or "none"


@proves(
    "Lengths that fit no block work like any other, or are refused by the declared rule.",
    causes=(
        "padding to a block that is seen by the last rows",
        "a last block that is dropped, or read beyond its end",
        "a chunk boundary at which the state is taken one token early or late",
    ),
    claim="lengths",
)
def check_length_not_multiple_of_block(
    subject: Subject, length: int, parts: tuple[Part, ...] = ()
) -> None:
    shape = subject.fit(
        Shape(name="", heads=1, queries=length, keys=length, head_dim=4, value_dim=3)
    )
    sample, instance = subject.draw(shape), subject.at(shape)
    wanted = sorted(subject.capabilities.requires | frozenset(parts))
    sample = sample.masked(combine(wanted, shape))
    if subject.has_definition:
        against_definition(instance, sample)
    else:
        _padded(subject, instance, sample, shape)


def _padded(subject: Subject, instance: Instance, sample: Sample, shape: Shape) -> None:
    """Without a definition: the rows of the first half are those of any other length."""
    if "causal" not in sample.mask.parts:
        need_finite("the output", instance(sample), sample.describe())
        return
    half = max(1, shape.keys // 2)
    short = sample.positions(slice(0, half)).masked(
        needed(subject.capabilities, shape.of(queries=half, keys=half)) & Mask.causal()
    )
    compare(
        f"the first {half} outputs, against {half} positions alone",
        instance(sample)[:, :, :half],
        instance(short),
        tolerance=output_tolerance(sample),
        given=sample.describe(),
    )
