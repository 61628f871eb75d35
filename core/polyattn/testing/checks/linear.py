"""H. Linear attention: small features and their normaliser, and the state against the formula."""

from __future__ import annotations

import torch

from polyattn.mask import Mask
from polyattn.testing.checks.causality import causal_sample
from polyattn.testing.results import Mismatch, Seen, proves
from polyattn.testing.subjects.sequence import (
    Instance,
    Outcome,
    Subject,
    blaming,
    fixed_gradient,
    gradients,
)
from polyattn.testing.tools.cases import SQUARE, Sample, shape_of
from polyattn.testing.tools.compare import against_definition
from polyattn.testing.tools.numerics import compare, same_tolerance, value_tolerance

LEVELS: dict[str, tuple[float, float, float]] = {
    "around-8": (-8.0, -8.0, -8.0),
    "around-20": (-20.0, -20.0, -20.0),
    "mixed_keys": (-8.0, -20.0, 1.0),
    "small_queries": (-20.0, 0.0, 1.0),
}
"""What the queries, the even keys and the odd keys are centred at."""


def at_level(sample: Sample, level: str) -> Sample:
    """The sample with queries and keys around ``LEVELS[level]``, at a tenth of their spread."""
    queries, even, odd = LEVELS[level]
    centres = torch.tensor([even, odd]).repeat(sample.k.shape[2])[: sample.k.shape[2], None]
    q = sample.q * 0.1 + queries
    return sample.having(q=q, k=(sample.k * 0.1 + centres).to(sample.dtype))


@proves(
    "Features close to zero count as they should: rows sum to one, and values are those of the "
    "definition.",
    causes=(
        "elu(x) + 1, zero below -17 in float32 and below -6 in bfloat16: take exp(x)",
        "an epsilon in the denominator, or the denominator clamped",
        "features or their sums kept in the half type",
    ),
    claim="rows_sum_to_one",
)
def check_linear_normaliser(subject: Subject, level: str, dtype: torch.dtype) -> None:
    shape = subject.fit(SQUARE)
    sample = at_level(subject.draw(shape, dtype=dtype), level)
    instance, given = subject.at(shape, dtype=dtype), f"{sample.describe()}, {level}"
    ones = sample.having(v=torch.ones_like(sample.v))
    told = "the output for values of 1"
    compare(
        told,
        instance(ones),
        ones.v[:, :, : shape.queries],
        tolerance=same_tolerance(dtype, 1),
        given=given,
    )
    if subject.has_definition:
        against_definition(instance, sample, gradients=False, note=level)


KNOWN, LATER = 40, 3
"""Tokens that the state has seen, and tokens that are asked about."""


@proves(
    "What the state answers is what the quadratic form gives, gradients of old keys included; and "
    "it stays as large as it was.",
    causes=(
        "the normaliser missing from the state, or detached from the keys",
        "a decay or a feature map that the state applies once more, or once less",
        "tokens kept beside the sums",
    ),
    claim="state",
)
def check_state_matches_quadratic(subject: Subject) -> None:
    total = KNOWN + LATER
    shape = subject.fit(SQUARE.of(queries=total, keys=total, head_dim=4, value_dim=3))
    sample, instance = causal_sample(subject, shape), subject.at(shape)
    given = f"{sample.describe()}, the last {LATER} from a state of {KNOWN}"
    _constant_size(instance, sample, given)
    if subject.backward:
        fresh = sample.each(lambda x: x.detach().clone().requires_grad_())
        weight = fixed_gradient(sample.q[:, :, -LATER:, :1])
        out = _from_state(instance, fresh)
        with blaming(given):
            got = Outcome(out.detach(), gradients(out, fresh.leaves(), weight.expand_as(out)))
        whole = instance.definition(fresh)[:, :, -LATER:]
        want = Outcome(whole.detach(), gradients(whole, fresh.leaves(), weight.expand_as(whole)))
    else:
        got = Outcome(_from_state(instance, sample), {})
        want = Outcome(instance.definition(sample)[:, :, -LATER:], {})
    allowed = value_tolerance(want.out, None, sample.dtype)
    compare("the output", got.out, want.out, tolerance=allowed, given=given)
    for name, grad in want.grads.items():
        allowed = value_tolerance(grad, None, sample.dtype, gradient=True)
        compare(f"the gradient of {name}", got.grads[name], grad, tolerance=allowed, given=given)


def _from_state(instance: Instance, sample: Sample) -> torch.Tensor:
    """The outputs of the last tokens, one by one."""
    outs = []
    with blaming(sample.describe()):
        state = instance.new_state(sample.q.shape[0], shape_of(sample).sizes, sample.dtype)
        _, state = instance.extend(_chunk(sample, 0, KNOWN), state)
        for start in range(KNOWN, KNOWN + LATER):
            out, state = instance.extend(_chunk(sample, start, 1), state)
            outs.append(out)
    return torch.cat(outs, dim=2)


def _chunk(sample: Sample, start: int, tokens: int) -> Sample:
    return sample.positions(slice(start, start + tokens)).masked(Mask.full())


def _constant_size(instance: Instance, sample: Sample, given: str) -> None:
    with blaming(given), torch.no_grad():
        state = instance.new_state(sample.q.shape[0], shape_of(sample).sizes, sample.dtype)
        _, few = instance.extend(_chunk(sample, 0, 2), state)
        _, many = instance.extend(_chunk(sample, 2, KNOWN), few)
    if many.nbytes != few.nbytes:
        what = f"a recurrent state grew from {few.nbytes} to {many.nbytes} bytes in {KNOWN} tokens"
        raise Mismatch(Seen(what=what, given=given))
