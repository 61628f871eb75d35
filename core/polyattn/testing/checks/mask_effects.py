"""D. Each part of a mask that is taken has an effect, also where a definition would ignore it."""

from __future__ import annotations

import torch

from polyattn.capabilities import Part
from polyattn.testing.results import Mismatch, Seen, proves
from polyattn.testing.subjects.sequence import Instance, Subject
from polyattn.testing.tools.cases import SQUARE, Sample
from polyattn.testing.tools.masks import needed, with_part
from polyattn.testing.tools.numerics import largest

LEAST = 1e-6
"""What an effect is at least, on values of magnitude one: masks that are planted move far more."""


@proves(
    "A part of a mask that is claimed changes the output, wherever it closes or weighs anything.",
    causes=(
        "a part that is claimed and never read, by the definition neither",
        "a part that is read where another is missing",
    ),
    claim="masks",
)
def check_mask_part_counts(subject: Subject, part: Part) -> None:
    """Comparing with a definition that ignores the same part shows nothing."""
    shape = subject.fit(SQUARE)
    plain = subject.draw(shape)
    masked = plain.masked(with_part(subject.capabilities, part, shape))
    instance = subject.at(shape)
    if part not in ("bias", "alibi") and not _closes(instance, plain, masked):
        return
    with torch.no_grad():
        moved = largest(instance(masked) - instance(plain))
    if moved < LEAST * max(1.0, largest(plain.v)):
        what = f"the output is the same with {part} as without"
        raise Mismatch(Seen(what=what, given=masked.describe()))


def _closes(instance: Instance, plain: Sample, masked: Sample) -> bool:
    """Whether the part hides a key that a query would see without it."""
    queries, keys = plain.lengths
    size = queries, keys, plain.q.shape[0], plain.q.shape[1]
    pattern = instance.pattern(queries, keys)
    every = torch.ones(queries, keys, dtype=torch.bool) if pattern is None else pattern
    before, after = (x.mask.keep(*size) for x in (plain, masked))
    seen = every if before is None else every & before
    return after is not None and bool((seen & ~after).any())


def claimed_parts(subject: Subject) -> tuple[Part, ...]:
    """The parts that a call may have, beyond those that it must."""
    claims = subject.capabilities
    return tuple(sorted(claims.masks - needed(claims, subject.fit(SQUARE)).parts))
