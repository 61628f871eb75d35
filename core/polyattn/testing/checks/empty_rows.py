"""D. Masks: rows that see nothing."""

from __future__ import annotations

from collections.abc import Callable

import torch

from polyattn.mask import Mask
from polyattn.testing.results import proves
from polyattn.testing.subjects.sequence import Outcome, Subject
from polyattn.testing.tools.cases import SQUARE, Sample, Shape
from polyattn.testing.tools.compare import against_definition, same_outcome
from polyattn.testing.tools.numerics import compare, need_finite


@proves(
    "A row that sees no key gives zeros with zero gradients and disturbs no other row; "
    "a row of finfo.min is a row of numbers.",
    causes=(
        "softmax over a row of -inf: deal with it inside the softmax, not on the output",
        "a finite fill such as -1e9, which averages the closed keys: zeros are the convention",
        "nan_to_num on the output, which leaves NaN in the gradients",
        "a block that is wholly closed poisons the running maximum",
    ),
    claim="masks",
)
def check_fully_masked_rows(subject: Subject, case: str) -> None:
    shape = subject.fit(SQUARE)
    if case == "long_band":
        shape = subject.fit(Shape(name="", batch=1, heads=1, queries=600, keys=600, value_dim=4))
    sample = _emptied(subject, shape, case)
    instance = subject.at(shape)
    given = f"{sample.describe()}, {case}"
    with torch.no_grad():
        quiet = instance(sample)
    need_finite("the output", quiet, given)
    keep = sample.mask.keep(*sample.lengths, shape.batch, shape.heads)
    if keep is not None and case != "finfo_min":
        blind = (~keep.any(-1)).expand(*sample.q.shape[:3])
        assert bool(blind.any()) or case == "long_band", f"{case} plants no empty row"
        rows = quiet[blind]
        compare(
            "the output of rows that see no key",
            rows,
            torch.zeros_like(rows),
            tolerance=0.0,
            given=given,
        )
    if not subject.backward:
        return
    outcome = instance.run(sample)
    for name, grad in outcome.grads.items():
        need_finite(f"the gradient of {name}", grad, given)
    if subject.has_definition:
        plain = case not in ("long_band", "finfo_min")
        against_definition(instance, sample, gradients=plain, note=case)
    same_outcome(
        Outcome(outcome.out, {}),
        Outcome(quiet, {}),
        sample,
        given=given + ", with and without gradients",
    )


def _emptied(subject: Subject, shape: Shape, case: str) -> Sample:
    """A sample in which some rows see nothing, by the means that ``case`` names."""
    sample = subject.draw(shape)
    keep = torch.ones(shape.batch, shape.heads, shape.queries, shape.keys, dtype=torch.bool)
    keep[-1, 0, 2] = False
    zeros = torch.zeros(keep.shape, dtype=sample.dtype)
    left = torch.ones(shape.batch, shape.keys, dtype=torch.bool)
    left[-1, :4] = False
    alone = torch.zeros(shape.batch, shape.keys, dtype=torch.long)
    rows = torch.arange(shape.queries)[:, None] - torch.arange(shape.keys)
    extra: dict[str, Callable[[], Mask]] = {
        "boolean": lambda: Mask.dense(keep),
        "minus_infinity": lambda: Mask.bias(zeros.masked_fill(~keep, -torch.inf)),
        "finfo_min": lambda: Mask.bias(zeros.masked_fill(~keep, torch.finfo(sample.dtype).min)),
        "padding": lambda: Mask.padding(left & (torch.arange(shape.batch) == 0)[:, None]),
        "causal_and_padding": lambda: Mask.causal() & Mask.padding(left),
        "window_and_padding": lambda: Mask.window(1, 1) & Mask.padding(left),
        "segments": lambda: Mask.segments(alone[:, : shape.queries] + (rows[:, 0] == 3), alone),
        "long_band": lambda: Mask.dense((rows >= 0) & (rows <= 8)),
    }
    return sample.masked(sample.mask & extra[case]())
