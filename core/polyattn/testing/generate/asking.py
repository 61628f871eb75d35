"""What can be asked of a subject under its claims: shapes, and parts of a mask."""

from __future__ import annotations

from collections.abc import Callable

from polyattn.capabilities import ORDERED_PARTS, Part
from polyattn.testing.planned import Check, withheld
from polyattn.testing.results import Status
from polyattn.testing.subjects.sequence import Subject
from polyattn.testing.tools.cases import Shape


def shapes(subject: Subject, *wanted: Shape) -> dict[str, Shape]:
    """The shapes that stay different from one another under the subject's claims, by name."""
    found: dict[Shape, str] = {}
    for shape in wanted:
        fitted = subject.fit(shape)
        found.setdefault(fitted.of(), shape.name)
    unique: dict[str, Shape] = {}
    for shape, name in found.items():
        unique[name] = shape
    return unique


def single_parts(subject: Subject) -> tuple[Part, ...]:
    """The parts that can be asked for one at a time, beyond those that every call has."""
    claims = subject.capabilities
    return tuple(part for part in ORDERED_PARTS if part in claims.masks - claims.requires)


def may_refuse(subject: Subject, part: Part) -> bool:
    """Whether a function cannot be asked for this part at L != S, where some checks ask."""
    return part == "causal" and bool(subject.why_square_only)


def learnable(subject: Subject) -> tuple[Part, ...]:
    """The parts of a mask that a gradient can reach. To refuse that is the subject's right."""
    return tuple(p for p in single_parts(subject) if p in ("bias", "alibi") and subject.backward)


def without_definition(subject: Subject, function: Callable[..., None]) -> Check:
    """A check that needs a definition, where there is none."""
    return withheld(function, Status.NOT_RUN, subject.why_no_definition)
