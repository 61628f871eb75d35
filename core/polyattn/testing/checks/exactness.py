"""H. What "exact" and "any length" say, of variants that bring a definition of their own."""

from __future__ import annotations

import dataclasses

from polyattn.capabilities import Part
from polyattn.testing.results import proves
from polyattn.testing.subjects.sequence import blaming
from polyattn.testing.subjects.variant import VariantSubject
from polyattn.testing.tools.cases import RECTANGULAR, SQUARE
from polyattn.testing.tools.masks import combine
from polyattn.testing.tools.numerics import compare, need_finite, value_tolerance


@proves(
    'Exactness "exact" is softmax over the pattern: a definition of its own agrees with that.',
    causes=(
        "a kernel of its own or an approximation that claims to be exact",
        "a definition that copies the mistake of the code",
    ),
    claim="exactness",
)
def check_exact_is_softmax(subject: VariantSubject, parts: tuple[Part, ...] = ()) -> None:
    shape = subject.fit(RECTANGULAR)
    mask = combine(sorted(subject.capabilities.requires | frozenset(parts)), shape)
    sample = subject.draw(shape).masked(mask)
    instance = subject.at(shape)
    want = instance.loop(sample)
    compare(
        "the output, against softmax by a loop",
        instance(sample),
        want,
        tolerance=value_tolerance(want, None, sample.dtype),
        given=sample.describe(),
    )


@proves(
    "A variant without a rule for lengths takes more keys than sizes.max_length, where it was "
    "built for some.",
    causes=(
        "a table or a projection of max_length rows: claim Lengths(up_to='max_length')",
        "a buffer that is made for max_length once",
    ),
    claim="lengths",
)
def check_any_length(subject: VariantSubject) -> None:
    shape = subject.fit(SQUARE)
    sizes = dataclasses.replace(shape.sizes, max_length=shape.keys - 2)
    sample = subject.draw(shape)
    given = f"{sample.describe()}, built for {sizes.max_length} keys"
    with blaming(given):
        short = subject.build(sizes, subject.dtype)
    need_finite("the output", short(sample), given)
