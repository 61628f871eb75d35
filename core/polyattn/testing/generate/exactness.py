"""The checks of what "exact" and "any length" say."""

from __future__ import annotations

from collections.abc import Iterator

from polyattn.testing.checks import exactness
from polyattn.testing.generate.asking import single_parts
from polyattn.testing.planned import Check, not_claimed, planned
from polyattn.testing.subjects.sequence import Subject
from polyattn.testing.subjects.variant import VariantSubject


def exactness_checks(subject: Subject) -> Iterator[Check]:
    """Of variants: what is found out by trying was not claimed."""
    if not isinstance(subject, VariantSubject):
        return
    claims, softmax = subject.capabilities, exactness.check_exact_is_softmax
    if claims.exactness != "exact":
        yield not_claimed(softmax, f"its exactness is {claims.exactness!r}")
    elif subject.softmax:
        yield not_claimed(softmax, "every comparison is with softmax already")
    else:
        yield planned(softmax, "plain", subject)
        for part in sorted(single_parts(subject)):
            yield planned(softmax, part, subject, (part,), may_refuse=True)
    beyond = exactness.check_any_length
    if claims.lengths.up_to is None:
        yield planned(beyond, "", subject)
    else:
        yield not_claimed(beyond, f"its lengths follow a rule: {claims.lengths}")
