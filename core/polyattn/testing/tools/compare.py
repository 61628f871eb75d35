"""Comparisons that several checks share: with the definition, and between two runs."""

from __future__ import annotations

import torch

from polyattn.testing.subjects.sequence import Instance, Outcome
from polyattn.testing.tools.cases import Sample
from polyattn.testing.tools.numerics import compare, largest, same_tolerance, value_tolerance


def against_definition(
    instance: Instance, sample: Sample, *, gradients: bool = True, note: str = ""
) -> None:
    """The output, and each gradient by itself, as the definition in float64 has them."""
    given = f"{sample.describe()}{note and ', '}{note}"
    gradients = gradients and instance.subject.backward
    exact = instance.widened()
    wide = sample.to(torch.float64)
    if not gradients:
        want = Outcome(exact.definition(wide), {})
        got = Outcome(instance(sample), {})
    else:
        want, got = exact.expect(wide), instance.run(sample)
    plain: Outcome | None = None
    if sample.dtype != torch.float64:
        plain = instance.expect(sample) if gradients else Outcome(instance.definition(sample), {})
    compare(
        "the output",
        got.out,
        want.out,
        tolerance=value_tolerance(want.out, None if plain is None else plain.out, sample.dtype),
        given=given,
    )
    steepest = max((largest(grad) for grad in want.grads.values()), default=0.0)
    for name, expected in want.grads.items():
        allowed = value_tolerance(
            expected, None if plain is None else plain.grads[name], sample.dtype, gradient=True
        )
        if not largest(expected):
            # Where there is one key, its weight is constant: what is left of dq is rounding.
            allowed = max(allowed, 8 * torch.finfo(sample.dtype).eps * steepest)
        compare(
            f"the gradient of {name}", got.grads[name], expected, tolerance=allowed, given=given
        )


def same_outcome(got: Outcome, want: Outcome, sample: Sample, *, given: str) -> None:
    """Two runs of the same code: the output and each gradient agree within rounding."""
    scale = largest(sample.v)
    compare(
        "the output",
        got.out,
        want.out,
        tolerance=same_tolerance(sample.dtype, scale),
        given=given,
    )
    for name, expected in want.grads.items():
        allowed = same_tolerance(sample.dtype, max(1.0, scale, largest(expected)), factor=4.0)
        compare(
            f"the gradient of {name}", got.grads[name], expected, tolerance=allowed, given=given
        )


def output_tolerance(sample: Sample) -> float:
    """What the outputs of two runs of the same code may differ by."""
    return same_tolerance(sample.dtype, largest(sample.v))
