"""The checks of properties that are claimed one by one."""

from __future__ import annotations

from collections.abc import Iterator

from polyattn.testing.checks import compiling, properties, symmetry
from polyattn.testing.generate.asking import single_parts
from polyattn.testing.planned import Check, not_claimed, planned
from polyattn.testing.subjects.sequence import Subject
from polyattn.testing.subjects.variant import VariantSubject


def claimed_properties(subject: Subject) -> Iterator[Check]:
    """Group C: each of them proven where it is claimed, and listed where it is not."""
    claims = subject.capabilities
    linear = properties.check_value_linearity
    if claims.linear_in_values:
        yield planned(linear, "plain", subject)
        for part in ("causal", "padding"):
            if part in single_parts(subject):
                yield planned(linear, part, subject, (part,))
    else:
        yield not_claimed(linear, "linear_in_values is not claimed")
    order = symmetry.check_key_order
    if not claims.key_order_invariant:
        yield not_claimed(order, "key_order_invariant is not claimed")
    else:
        # Also where every call has an order: who claims that there is none is mistaken.
        yield planned(order, "", subject)
    dropout = properties.check_dropout_semantics
    if claims.dropout and isinstance(subject, VariantSubject):
        for probability in (0.25, 0.5):
            yield planned(dropout, f"p{probability:g}", subject, probability)
    else:
        yield not_claimed(dropout, "dropout is not claimed")
    if claims.compiles == "no":
        yield not_claimed(compiling.check_compile, "compiles is not claimed")
    else:
        yield planned(compiling.check_compile, "", subject, extended=True)
