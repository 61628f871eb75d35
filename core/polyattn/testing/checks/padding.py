"""D. Masks: padding is as if it were not there."""

from __future__ import annotations

import torch
from torch import Tensor

from polyattn.mask import Mask
from polyattn.testing.results import proves
from polyattn.testing.subjects.sequence import Instance, Outcome, Subject, fixed_gradient
from polyattn.testing.tools.cases import SQUARE, Sample, Shape, shape_of
from polyattn.testing.tools.compare import output_tolerance
from polyattn.testing.tools.masks import needed
from polyattn.testing.tools.numerics import compare


@proves(
    "Padding changes nothing: real positions give what they give without it; it gets no gradient.",
    causes=(
        "padded keys set to zero in place of being closed",
        "padding that still counts in a normaliser, a landmark, a projection or a decay",
        "positions counted by slot where real tokens should be counted",
        "the padding of one sample used for another",
    ),
    claim="masks (padding)",
)
def check_padding_equals_truncation(
    subject: Subject, side: str, garbage: float, causal: bool = False
) -> None:
    """side: left, right, middle. Sample b has b * step of its positions padded."""
    step = subject.capabilities.lengths.multiple_of
    longest = max(11, 3 * step)  # What is left of the shortest sample is a length, too.
    shape = subject.fit(SQUARE.of(batch=3, queries=longest, keys=longest))
    base = subject.draw(shape)
    base = base.masked(base.mask & Mask.causal()) if causal else base
    real = _real_slots(shape, side, step)
    padded = _padded(base, real, garbage)
    instance = subject.at(shape)
    size = (*base.q.shape[:3], shape.value_dim)
    grad_out = fixed_gradient(torch.empty(size)) * real[:, None, :, None]
    whole = _run(instance, padded, grad_out)
    for b in range(shape.batch):
        slots = real[b].nonzero().squeeze(1)
        alone = base.rows(slice(b, b + 1)).positions(slots)
        mask = needed(subject.capabilities, shape_of(alone))
        alone = alone.masked(mask & Mask.causal() if causal else mask)
        piece = _run(instance, alone, grad_out[b : b + 1, :, slots])
        given = f"{padded.describe()}, {side}, padding holds {garbage:g}, sample {b}"
        _same_where_real(whole, piece, b, slots, base, given)
        _untouched_where_padded(whole, b, ~real[b], given)


def _run(instance: Instance, sample: Sample, grad_out: Tensor) -> Outcome:
    """The output, and the gradients where any are claimed."""
    if instance.subject.backward:
        return instance.run(sample, grad_out)
    return Outcome(instance(sample), {})


def _padded(base: Sample, real: Tensor, garbage: float) -> Sample:
    """The sample with garbage where nothing is real, which the mask closes."""
    spoilt = {"q": 1.0, **dict.fromkeys(base.leaves().keys() - {"q"}, garbage)}
    leaves = {
        name: torch.where(real[:, None, :, None], x, spoilt[name])
        for name, x in base.leaves().items()
    }
    return base.having(**leaves).masked(base.mask & Mask.padding(real))


def _same_where_real(
    whole: Outcome, alone: Outcome, b: int, slots: Tensor, base: Sample, given: str
) -> None:
    """Sample b of the batch, at its real slots, against it alone: output and gradients."""
    pairs = [("output", whole.out, alone.out)]
    pairs += [(f"gradient of {n}", grad, alone.grads[n]) for n, grad in whole.grads.items()]
    for name, got, want in pairs:
        compare(
            f"the {name} of the real positions",
            got[b : b + 1, :, slots],
            want,
            tolerance=output_tolerance(base) * (10 if "gradient" in name else 1),
            given=given,
        )


def _untouched_where_padded(whole: Outcome, b: int, padding: Tensor, given: str) -> None:
    """Keys and values that are padding get no gradient; a padded query may have one of its own."""
    for name, grad in whole.grads.items():
        if name != "q":
            rest = grad[b, :, padding]
            what = f"the gradient of {name} of the padding"
            compare(what, rest, torch.zeros_like(rest), tolerance=0.0, given=given)


def _real_slots(shape: Shape, side: str, step: int) -> Tensor:
    """(B, S): sample b has b * step positions padded at the left, the right or in the middle."""
    padded = (torch.arange(shape.batch) * step).unsqueeze(1)
    slots = torch.arange(shape.keys)
    if side == "left":
        return slots >= padded
    if side == "right":
        return slots < shape.keys - padded
    return (slots < 2) | (slots >= 2 + padded)
