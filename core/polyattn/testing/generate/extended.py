"""The checks of export, of sizes and memory, and of what is reported without being claimed."""

from __future__ import annotations

from collections.abc import Iterator

from polyattn.capabilities import Part
from polyattn.testing.checks import exporting, memory, vmapping
from polyattn.testing.generate.asking import single_parts
from polyattn.testing.planned import Check, not_claimed, planned, withheld
from polyattn.testing.results import Status
from polyattn.testing.subjects.sequence import Subject
from polyattn.testing.subjects.variant import VariantSubject
from polyattn.testing.tools.cases import SQUARE

WIDEST = 256
"""The widest window whose memory is looked at: it must be small against the lengths."""


def extended_checks(subject: Subject) -> Iterator[Check]:
    """Group L, but for compilation. Threads belong to the life cycle."""
    yield from _unwritten(subject)
    if subject.backward:
        check = memory.check_deterministic_backward
        yield planned(check, "", subject, reports=True, extended=True)
    yield planned(memory.check_large_sizes, "batch", subject, "batch", extended=True)
    if isinstance(subject, VariantSubject):
        yield from _export(subject)
        yield from _vmap(subject)
        yield from _memory(subject)


def _unwritten(subject: Subject) -> Iterator[Check]:
    check = memory.check_no_uninitialised_output
    yield planned(check, "plain", subject)
    wanted: tuple[Part, ...] = ("causal", "padding", "dense")
    for part in wanted:
        if part in single_parts(subject):
            yield planned(check, part, subject, (part,))


def _export(subject: VariantSubject) -> Iterator[Check]:
    claims, check = subject.capabilities, exporting.check_export
    if claims.exports == "no":
        yield not_claimed(check, "exports is not claimed")
        return
    yield planned(check, "plain", subject, extended=True)
    wanted: tuple[Part, ...] = ("padding", "dense")
    for part in wanted:
        if part in claims.masks:
            yield planned(check, part, subject, part, extended=True)
            return


def _vmap(subject: VariantSubject) -> Iterator[Check]:
    claims = subject.capabilities
    cases = ["forward", *(["gradient"] if subject.backward else [])]
    if claims.grouped_heads != "no":
        cases.append("grouped")
    cases += sorted({"padding", "dense"} & claims.masks)
    for case in cases:
        yield planned(vmapping.check_vmap, case, subject, case, reports=True)


def _memory(subject: VariantSubject) -> Iterator[Check]:
    claims, check = subject.capabilities, memory.check_no_quadratic_memory
    if not claims.linear_memory:
        yield not_claimed(check, "linear_memory is not claimed")
        return
    if sum(subject.promised_window or (0, 0)) > WIDEST:
        why = f"its window is wider than {WIDEST}: that takes lengths which take too long"
        yield withheld(check, Status.NOT_RUN, why)
        return
    yield planned(check, "", subject, extended=True)
    # Of these lengths, time must not be quadratic either.
    fast = claims.exactness != "exact" or subject.promised_window or "window" in claims.requires
    length = subject.fit(SQUARE.of(queries=65_600, keys=65_600)).keys
    if fast and "padding" in claims.masks and length >= 65_600:
        yield planned(memory.check_large_sizes, "length", subject, "length", extended=True)
