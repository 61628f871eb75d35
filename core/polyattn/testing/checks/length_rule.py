"""H. Lengths: the rule that is declared is the rule that is kept, and no row changes its place."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from polyattn.contract import SequenceAttention
from polyattn.errors import Unsupported
from polyattn.testing.checks.approximation import called
from polyattn.testing.results import Mismatch, Seen, proves
from polyattn.testing.subjects.sequence import blaming
from polyattn.testing.subjects.variant import VariantInstance, VariantSubject, seeded
from polyattn.testing.tools.cases import LONGEST, SQUARE, Sample, Shape
from polyattn.testing.tools.numerics import value_tolerance
from polyattn.testing.tools.raising import must_raise


def against_the_rule(subject: VariantSubject) -> dict[str, int]:
    """Key lengths that the declared rule forbids, by the part of the rule that does."""
    rule = subject.capabilities.lengths
    longest = LONGEST if rule.up_to == "max_length" else rule.up_to
    found = {}
    if rule.multiple_of > 1:
        found["multiple_of"] = subject.fit(SQUARE).keys + 1
    if rule.at_least > 1:
        found["at_least"] = rule.at_least - 1
    if longest is not None:
        found["up_to"] = longest + rule.multiple_of
    return found


@proves(
    "Lengths that the rule allows work and others raise, on every call; output rows are in the "
    "order of the queries.",
    causes=(
        "a check of lengths that is made once and remembered",
        "a table that is read modulo its length, or a sequence that is cut off",
        "padding put in front and taken off at the end",
    ),
    claim="lengths",
)
def check_length_contract(subject: VariantSubject, length: int, refused: int | None = None) -> None:
    """``refused``: a length against the rule, asked for in turns with ``length``.

    Without one, rows are looked at: values count the keys, so outputs must count as well.
    """
    if refused is None:
        _in_order(subject, subject.fit(SQUARE.of(queries=length, keys=length)))
        return
    good, bad = (subject.draw(_square(n)) for n in (length, refused))
    instance = subject.build(_square(length).sizes, subject.dtype)
    for attempt in ("first", "second"):
        instance(good)
        must_raise(
            lambda: instance.raw(bad),
            Unsupported,
            asked=f"S = {refused}, against the rule, at the {attempt} attempt",
            expected="Unsupported",
            given=bad.describe(),
        )


def _square(length: int) -> Shape:
    return Shape(name="", batch=1, queries=length, keys=length)


def counting(sample: Sample) -> Sample:
    """Key j has the value j, and queries and keys lie on a quarter of a circle, in their order.

    So the later a query, the later the keys that it prefers, whatever the kernel; how large its row
    is, the values tell only where rows sum to one.
    """
    length = sample.k.shape[2]
    angles = (torch.arange(length) + 0.5) / length * (math.pi / 2)
    arc = torch.zeros_like(sample.k)
    arc[..., 0], arc[..., 1] = 4 * angles.cos(), 4 * angles.sin()
    values = torch.arange(length).to(sample.v)[:, None].expand_as(sample.v)
    level = {name: torch.ones_like(x) for name, x in sample.inputs.items()}
    return sample.having(q=arc, k=arc.clone(), v=values.clone(), **level)


def _in_order(subject: VariantSubject, shape: Shape) -> None:
    sample = counting(subject.draw(shape))
    with blaming(sample.describe()), seeded(0):
        module = _as_exact_as_it_gets(subject, shape).to(sample.dtype).eval()
        out = called(module, sample)
    late = ((out.diff(dim=2) <= 0) & _rising_by_definition(subject, module, sample)).any(-1)
    if bool(late.any()):
        place = int(late.nonzero()[0, -1])
        what = (
            f"for values that count the keys, row {place + 1} is not larger than row {place}: rows "
            "have changed places"
        )
        raise Mismatch(Seen(what=what, given=sample.describe()))


def _rising_by_definition(
    subject: VariantSubject, module: SequenceAttention, sample: Sample
) -> Tensor:
    """Where a row has to be larger than the one before.

    Rows that sum to one lie among the values, and count as they do; of others the definition has to
    say how large they are.
    """
    claims = subject.capabilities
    if claims.exactness != "own kernel" or claims.rows_sum_to_one:
        return torch.ones((), dtype=torch.bool)
    with blaming("the definition, " + sample.describe()), torch.no_grad():
        want = VariantInstance(subject, module).own_reference(sample)
    return want.diff(dim=2) > value_tolerance(want, None, sample.dtype)


def _as_exact_as_it_gets(subject: VariantSubject, shape: Shape) -> SequenceAttention:
    module = subject.factory(subject.config, shape.sizes)
    found = type(module).at_limit(subject.config, shape.sizes, shape.keys)
    return module if found is None else found[0]
