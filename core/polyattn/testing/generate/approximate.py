"""The checks of linear and approximate attention, and of rules for the length."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from polyattn.contract import SequenceAttention
from polyattn.testing.checks import approximation, length_rule, linear
from polyattn.testing.checks.refusals import name_of
from polyattn.testing.planned import Check, not_claimed, planned
from polyattn.testing.subjects.sequence import Subject
from polyattn.testing.subjects.variant import VariantSubject
from polyattn.testing.tools.cases import RECTANGULAR, SQUARE


def approximate_checks(subject: Subject) -> Iterator[Check]:
    """Group H. Of a function from elsewhere none of it is known."""
    if not isinstance(subject, VariantSubject):
        return
    yield from _normaliser(subject)
    yield from _state(subject)
    yield from _limit(subject)
    yield from _features(subject)
    yield from _lengths(subject)


def _normaliser(subject: VariantSubject) -> Iterator[Check]:
    claims, check = subject.capabilities, linear.check_linear_normaliser
    if claims.exactness != "own kernel" or not claims.rows_sum_to_one:
        why = "no kernel of its own with rows that sum to one is claimed"
        yield not_claimed(check, why)
        return
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        for level in linear.LEVELS:
            if dtype in subject.dtypes:
                yield planned(check, f"{level}-{name_of(dtype)}", subject, level, dtype)


def _state(subject: VariantSubject) -> Iterator[Check]:
    check = linear.check_state_matches_quadratic
    if subject.capabilities.state == "recurrent":
        yield planned(check, "", subject)
    else:
        yield not_claimed(check, "no recurrent state is claimed")


def has_limit(subject: VariantSubject) -> bool:
    """Whether the variant says how to go to its limit."""
    module = subject.factory(subject.config, subject.fit(SQUARE).sizes)
    theirs, base = type(module).at_limit, SequenceAttention.at_limit
    return getattr(theirs, "__func__", theirs) is not getattr(base, "__func__", base)


def _limit(subject: VariantSubject) -> Iterator[Check]:
    claims, exact = subject.capabilities, approximation.check_exact_at_limit
    if has_limit(subject) or (claims.limit and not claims.improves_with):
        for shape in (SQUARE, RECTANGULAR, SQUARE.of(queries=37, keys=37)):
            fitted = subject.fit(shape)
            yield planned(exact, f"{fitted.queries}of{fitted.keys}", subject, shape)
    else:
        why = f"its limit takes an infinite {claims.improves_with}"
        why = why if claims.improves_with else "no limit is named"
        yield not_claimed(exact, why)
    improves = approximation.check_approximation_improves
    if claims.improves_with:
        yield planned(improves, "", subject)
    else:
        yield not_claimed(improves, "improves_with is not claimed")


def _features(subject: VariantSubject) -> Iterator[Check]:
    claimed = subject.capabilities.random_features != "no"
    for case in ("seed", "saved", "training") if claimed else ("undeclared",):
        yield planned(approximation.check_stochastic_features, case, subject, case)


def _lengths(subject: VariantSubject) -> Iterator[Check]:
    check = length_rule.check_length_contract
    allowed = subject.fit(SQUARE).keys
    for part, refused in length_rule.against_the_rule(subject).items():
        yield planned(check, part, subject, allowed, refused)
    if not _counts(subject):
        return
    for length in sorted({subject.fit(SQUARE.of(keys=n, queries=n)).keys for n in (13, 37, 130)}):
        yield planned(check, f"rows_of_{length}", subject, length)


def _counts(subject: VariantSubject) -> bool:
    """Whether later rows are known to prefer later keys: by a kernel, or by a window."""
    if subject.capabilities.exactness == "approximate":
        return has_limit(subject)
    shape = subject.fit(SQUARE)
    instance = subject.at(shape)
    learned = instance.has_parameters
    if subject.capabilities.exactness == "own kernel" and learned:
        return False  # what it prefers, its weights decide: additive attention, say
    pattern = instance.pattern(shape.queries, shape.keys)
    return pattern is None or subject.promised_window is not None
