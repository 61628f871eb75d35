"""The checks of decoding and of causal prefixes that a subject's claims ask for, further ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from polyattn.testing.checks import decoding_sizes as checks
from polyattn.testing.checks.refusals import name_of
from polyattn.testing.generate.asking import single_parts, without_definition
from polyattn.testing.planned import Check, not_claimed, planned, withheld
from polyattn.testing.results import Status
from polyattn.testing.subjects.sequence import Subject
from polyattn.testing.subjects.variant import VariantSubject
from polyattn.testing.tools.cases import LONG_ODD, RECTANGULAR, SQUARE


def further_decoding_checks(subject: Subject) -> Iterator[Check]:
    """Groups E and F, behind the usual ones."""
    yield from _prefixes(subject)
    yield from _small_queries(subject)
    late: Callable[..., None] = checks.check_state_sizes_given_late
    low: Callable[..., None] = checks.check_decode_low_precision
    sums: Callable[..., None] = checks.check_decode_half_sums
    sizes: Callable[..., None] = checks.check_decode_degenerate_sizes
    blank: Callable[..., None] = checks.check_decode_rows_without_keys
    if subject.capabilities.state == "none":
        for check in (low, sums, sizes, blank, late):
            yield not_claimed(check, "no decoding state is claimed")
        return
    if not subject.has_definition:
        for check in (low, sums):
            yield without_definition(subject, check)
    else:
        halves = sorted((dtype for dtype in subject.dtypes if dtype.itemsize == 2), key=str)
        summed = halves if subject.capabilities.state == "recurrent" else []
        for dtype in summed:
            yield planned(sums, name_of(dtype), subject, dtype)
        if not summed:
            reason = "no recurrent state in a half type is claimed"
            yield not_claimed(sums, reason)
        for dtype in sorted(subject.dtypes - {torch.float64}, key=str):
            for cut in (1, 40):
                yield planned(low, f"{name_of(dtype)}-chunks{cut}", subject, dtype, cut)
    for case in checks.DECODED:
        if _fits(subject, case):
            yield planned(sizes, case, subject, case)
    for cut in (1, 3) if "padding" in subject.capabilities.masks else ():
        yield planned(blank, f"chunks{cut}", subject, cut)
    if "padding" not in subject.capabilities.masks:
        yield not_claimed(blank, "no mask of kind padding is claimed")
    if isinstance(subject, VariantSubject) and checks.sizeless(subject) is not None:
        yield planned(late, "", subject)
    else:
        yield withheld(late, Status.NOT_RUN, "it is built with its sizes")


def _fits(subject: Subject, case: str) -> bool:
    """Whether the sizes that are asked for can be had."""
    shape, grouped = checks.DECODED[case], subject.capabilities.grouped_heads != "no"
    if shape.kv_heads not in (None, 0, shape.heads) and not grouped:
        return False
    return subject.fit(shape).keys == shape.keys


def _small_queries(subject: Subject) -> Iterator[Check]:
    check, claims = checks.check_rows_sum_for_small_queries, subject.capabilities
    if not claims.rows_sum_to_one:
        yield not_claimed(check, "rows_sum_to_one is not claimed")
    elif not isinstance(subject, VariantSubject):
        yield withheld(check, Status.NOT_RUN, "functions from elsewhere claim nothing of the kind")
    else:
        for level in (-30.0, -100.0, -150.0):
            yield planned(check, f"around{level:g}", subject, level, False)
            if claims.state != "none":
                yield planned(check, f"around{level:g}-tokens", subject, level, True)


def _prefixes(subject: Subject) -> Iterator[Check]:
    """A prefix that nothing claims may be refused; where it is answered it must hold."""
    check, claims = checks.check_causal_prefix, subject.capabilities
    if claims.causal == "no":
        yield not_claimed(check, "no mask of kind causal is claimed")
        return
    if subject.raw_masks or not subject.has_definition:
        known = subject.has_definition
        reason = "functions from elsewhere know no prefix" if known else subject.why_no_definition
        yield withheld(check, Status.NOT_RUN, reason)
        return
    lengths = (SQUARE, RECTANGULAR, LONG_ODD) if claims.unequal_lengths else (SQUARE,)
    for shape in lengths:
        for prefix in (1, 3, 5, 1000):
            label = f"{shape.name}-{prefix}"
            yield planned(check, label, subject, shape, prefix, may_refuse=True)
    for part in ("padding", "window", "segments", "dense", "bias", "alibi"):
        if part in single_parts(subject):
            yield planned(check, f"square-3-{part}", subject, SQUARE, 3, (part,), may_refuse=True)
    for window in ((2, None), (0, 2), (None, 1)) if "window" in claims.masks else ():
        label = "square-4-window_" + "_".join(map(str, window))
        yield planned(check, label, subject, SQUARE, 4, (), window, may_refuse=True)
