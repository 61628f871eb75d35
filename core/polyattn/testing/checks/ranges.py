"""B. Values: large numbers stay in range, and autocast changes neither the dtype nor the result."""

from __future__ import annotations

import torch
from torch import Tensor

from polyattn.capabilities import Part
from polyattn.mask import Mask
from polyattn.testing.results import Mismatch, Seen, proves
from polyattn.testing.subjects.sequence import (
    Instance,
    Outcome,
    Subject,
    blaming,
    fixed_gradient,
    gradients,
)
from polyattn.testing.tools.cases import SQUARE, Sample
from polyattn.testing.tools.masks import combine
from polyattn.testing.tools.numerics import (
    SAME_EPS,
    compare,
    largest,
    need_finite,
    value_tolerance,
)

LOUD = 80.0
"""At a width of 64 the product of two such vectors is 409 600: times the scale it fits into float16
(65 504), before it does not."""
CASES = ("aligned", "opposed")


@proves(
    "Queries and keys of magnitude 80 stay in the range of float16, if the true result does, and "
    "give what the definition gives.",
    causes=(
        "the logits scaled after the product: scale q before it",
        "logits, features or their sums kept in float16: take float32 for them",
        "a softmax whose maximum is not taken off",
    ),
    claim="devices (dtypes)",
)
def check_fp16_range(subject: Subject, case: str) -> None:
    """case: ``aligned``, all queries and keys alike; ``opposed``, some of them turned around."""
    shape = subject.fit(SQUARE.of(head_dim=64, value_dim=64))
    sample = subject.draw(shape, dtype=torch.float16)
    if not subject.capabilities.rows_sum_to_one:
        # Then the output itself can be as large as a logit.
        sample = sample.having(v=sample.v / 256)
    instance, loud = subject.at(shape, dtype=torch.float16), LOUD
    sample, want = _loud(sample, loud, case), None
    if subject.has_definition:
        want = instance.widened().definition(sample.to(torch.float64))
        # A kernel of its own may grow faster than a logit: then the true result has to fit.
        while loud > 1 and not float(want.abs().max()) < LARGEST:
            loud /= 2
            sample = _loud(sample, loud, case)
            want = instance.widened().definition(sample.to(torch.float64))
    given = f"{sample.describe()}, |q| and |k| {loud:g}, {case}"
    got = instance(sample)
    if want is not None:
        allowed = SAME_EPS * torch.finfo(torch.float16).eps * max(largest(sample.v), largest(want))
        compare("the output", got, want, tolerance=allowed, given=given)
    need_finite("the output", got, given)
    if subject.backward and subject.capabilities.rows_sum_to_one:
        for name, grad in instance.run(sample).grads.items():
            need_finite(f"the gradient of {name}", grad, given)


LARGEST = torch.finfo(torch.float16).max / 2


def _loud(sample: Sample, loud: float, case: str) -> Sample:
    q, k = (torch.full_like(x, loud) for x in (sample.q, sample.k))
    if case == "opposed":
        q[:, :, 1::2] *= -1
        k[:, :, ::3] *= -1
    return sample.having(q=q, k=k)


LEVEL = 1000.0


@proves(
    "A number added to all logits of a row changes nothing: softmax cannot see it.",
    causes=(
        "a softmax whose maximum is not taken off, or is taken before the bias",
        "a bias that is clamped, or converted to a half type",
    ),
    claim="masks (bias)",
)
def check_row_constant_bias(subject: Subject) -> None:
    shape = subject.fit(SQUARE)
    sample = subject.draw(shape, dtype=torch.float32)
    levels = torch.tensor([LEVEL, -LEVEL, 0.0]).repeat(shape.queries)[: shape.queries]
    raised = sample.masked(sample.mask & Mask.bias(levels.reshape(1, 1, -1, 1)))
    instance = subject.at(shape, dtype=torch.float32)
    compare(
        f"the output for a bias of {LEVEL:g}, {-LEVEL:g} and 0 for whole rows, against none",
        instance(raised),
        instance(sample),
        # What a logit loses when it is added to the level.
        tolerance=2 * LEVEL * torch.finfo(torch.float32).eps * largest(sample.v),
        given=raised.describe(),
    )


@proves(
    "Under autocast a call gives what it gives otherwise, in the dtype of the inputs and with the "
    "error of the half type; a float32 bias is accepted.",
    causes=(
        "an output in autocast's dtype: end with .to(q.dtype)",
        "a product of two dtypes, one of which autocast has narrowed",
        "logits or sums narrowed by autocast that need float32: kit.as_given keeps it out",
    ),
    claim="devices (dtypes)",
)
def check_autocast(subject: Subject, dtype: torch.dtype, parts: tuple[Part, ...] = ()) -> None:
    """dtype: that of q, k and v; parameters and masks are in float32."""
    for shape in (subject.fit(SQUARE), subject.fit(SQUARE.of(queries=1))):
        mask = combine(sorted(subject.capabilities.requires | frozenset(parts)), shape)
        mask = mask.without("bias") & Mask.bias(mask.biases[0].float()) if mask.biases else mask
        sample = subject.draw(shape, dtype=dtype, std=1.0).masked(mask)
        instance = subject.at(shape, dtype=torch.float32)
        given = f"{sample.describe()}, autocast to bfloat16"
        got = _under_autocast(instance, sample, given)
        if got.out.dtype is not dtype:
            what = f"the output is in {got.out.dtype}, expected that of the inputs, {dtype}"
            raise Mismatch(Seen(what=what, given=given))
        if subject.has_definition:
            narrow = subject.at(shape, dtype=torch.bfloat16)
            _within_rule(instance, narrow, sample, got, given)
        for name, x in {"output": got.out, **got.grads}.items():
            need_finite(f"the {'' if name == 'output' else 'gradient of '}{name}", x, given)


def _under_autocast(instance: Instance, sample: Sample, given: str) -> Outcome:
    """Forward under autocast, backward outside of it, as a training step does it."""
    fresh = sample.each(lambda x: x.detach().clone().requires_grad_())
    with torch.autocast(instance.subject.place.name, dtype=torch.bfloat16):
        out = instance(fresh if instance.subject.backward else sample)
    grads: dict[str, Tensor] = {}
    if instance.subject.backward:
        with blaming(given):
            grads = gradients(out, fresh.leaves(), fixed_gradient(out).to(out.dtype))
    return Outcome(out.detach(), grads)


def _within_rule(
    instance: Instance, narrow: Instance, sample: Sample, got: Outcome, given: str
) -> None:
    """The rule for low precision, where the plain computation is done in bfloat16."""
    want = instance.widened().expect(sample.to(torch.float64))
    plain = narrow.expect(sample.to(torch.bfloat16))
    allowed = value_tolerance(want.out, plain.out, torch.bfloat16)
    compare("the output", got.out, want.out, tolerance=allowed, given=given)
    for name, grad in got.grads.items():
        allowed = value_tolerance(
            want.grads[name], plain.grads[name], torch.bfloat16, gradient=True
        )
        compare(f"the gradient of {name}", grad, want.grads[name], tolerance=allowed, given=given)
