"""Further checks of heads in long sequences, and of the parts of masks, that claims ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from polyattn.testing.checks.grouped_lengths import (
    LENGTHS,
    MANY_AT,
    WIDE_AT,
    check_grouped_heads_at_length,
    check_many_heads_at_length,
    check_wide_values_at_length,
)
from polyattn.testing.checks.mask_effects import check_mask_part_counts, claimed_parts
from polyattn.testing.generate.asking import single_parts, without_definition
from polyattn.testing.planned import Check, not_claimed, planned
from polyattn.testing.subjects.sequence import Subject
from polyattn.testing.tools.cases import Shape


def grouped_length_checks(subject: Subject) -> Iterator[Check]:
    """Parts of groups D and G."""
    yield from _many(subject)
    for part in claimed_parts(subject):
        yield planned(check_mask_part_counts, part, subject, part, may_refuse=True)
    if not claimed_parts(subject):
        reason = "no part of a mask can be left out"
        yield not_claimed(check_mask_part_counts, reason)
    check, claims = check_grouped_heads_at_length, subject.capabilities
    if claims.grouped_heads == "no":
        yield not_claimed(check, "grouped heads are not claimed")
        return
    if not subject.has_definition:
        yield without_definition(subject, check)
        return
    for length in LENGTHS:
        if subject.fit(Shape(name="", queries=length, keys=length)).keys != length:
            continue
        yield planned(check, f"length{length}", subject, length)
        for part in ("causal", "padding"):
            if part in single_parts(subject) and not subject.raw_masks:
                yield planned(check, f"length{length}-{part}", subject, length, (part,))


def _many(subject: Subject) -> Iterator[Check]:
    check = check_many_heads_at_length
    wide = check_wide_values_at_length
    if not subject.has_definition:
        yield without_definition(subject, check)
        yield without_definition(subject, wide)
        return
    if subject.fit(Shape(name="", queries=WIDE_AT, keys=WIDE_AT)).keys == WIDE_AT:
        yield planned(wide, f"length{WIDE_AT}", subject, WIDE_AT)
        yield from _learned(subject, wide, WIDE_AT)
    if subject.fit(Shape(name="", queries=MANY_AT, keys=MANY_AT)).keys == MANY_AT:
        yield planned(check, f"length{MANY_AT}", subject, MANY_AT)
        for part in ("causal", "padding", "segments", "alibi"):
            if part in single_parts(subject) and not subject.raw_masks:
                yield planned(check, f"length{MANY_AT}-{part}", subject, MANY_AT, (part,))
        yield from _learned(subject, check, MANY_AT)


def _learned(subject: Subject, check: Callable[..., None], length: int) -> Iterator[Check]:
    """With slopes that learn, where they may be given. To refuse that is the subject's right."""
    if "alibi" in single_parts(subject) and subject.backward and not subject.raw_masks:
        label, parts = f"length{length}-learned_alibi", ("alibi",)
        yield planned(check, label, subject, length, parts, learns_mask=True, may_refuse=True)
