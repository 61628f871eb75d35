"""The checks of windows, declared patterns, and of what a decoding state holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from polyattn.testing.checks import state_sizes, windows
from polyattn.testing.planned import Check, not_claimed, planned, withheld
from polyattn.testing.results import Status
from polyattn.testing.subjects.sequence import Subject
from polyattn.testing.subjects.variant import VariantSubject
from polyattn.testing.tools.cases import SQUARE

ASKED = (4, 2)
"""A window that is asked for by the mask."""
WIDEST = 64
"""Sequences of several windows of more keys take too long."""


def further_window_checks(subject: Subject) -> Iterator[Check]:
    """Of a function from elsewhere nothing of this is known."""
    if not isinstance(subject, VariantSubject):
        return
    for group in (_full, _shifts, _more_queries, _patterns, _eviction, _state_size):
        yield from group(subject)


def _asked(subject: VariantSubject) -> bool:
    """Whether a mask may bring a window, to a variant that else sees everything."""
    return "window" in subject.capabilities.masks and subject.promised_window is None


def _pattern(subject: VariantSubject, length: int) -> torch.Tensor | None:
    shape = subject.fit(windows.of_length(length))
    return subject.at(shape).pattern(shape.queries, shape.keys)


def _window_alone(subject: VariantSubject) -> tuple[int, int] | None:
    """The window that its options promise, where it is all that its pattern says."""
    window, pattern = subject.promised_window, _pattern(subject, windows.LENGTH)
    if window is None or pattern is None:
        return None
    return window if torch.equal(pattern, windows.band(pattern.shape[-1], *window)) else None


def _full(subject: VariantSubject) -> Iterator[Check]:
    check, claims = windows.check_window_full_equals_dense, subject.capabilities
    causal = (False,) if claims.causal == "no" else (False, True)
    if "causal" in claims.requires:
        causal = (True,)
    found = False
    if _asked(subject) and "window" not in claims.requires:
        found = True
        for with_causal in causal:
            label = "mask-causal" if with_causal else "mask"
            yield planned(check, label, subject, "mask", with_causal)
    if _window_alone(subject) is not None and subject.softmax:
        found = True
        for with_causal in causal if "causal" in claims.requires else (False, True):
            label = "options-causal" if with_causal else "options"
            yield planned(check, label, subject, "options", with_causal, may_refuse=True)
    if not found:
        yield not_claimed(check, "no window that may be as wide as the sequence is claimed")


def _too_wide(function: Callable[..., None], window: int) -> Check:
    why = f"its window of {window} keys takes too long; see an example of a narrower one"
    return withheld(function, Status.NOT_RUN, why)


def _shifts(subject: VariantSubject) -> Iterator[Check]:
    check = windows.check_shift_equivariance
    promised = _window_alone(subject)
    if promised is not None and sum(promised) >= WIDEST:
        yield _too_wide(check, sum(promised) + 1)
    elif promised is not None:
        yield planned(check, "options", subject, *promised, "options")
    elif _asked(subject) and _pattern(subject, windows.LENGTH) is None:
        left, right = ASKED
        right = 0 if "causal" in subject.capabilities.requires else right
        yield planned(check, "mask", subject, left, right, "mask")
    else:
        yield not_claimed(check, "no window is claimed, or more than a window is seen")


def _more_queries(subject: VariantSubject) -> Iterator[Check]:
    check, claims = windows.check_more_queries_raise, subject.capabilities
    parts = [part for part in windows.POSITIONED if part in claims.masks]
    if not parts or not claims.unequal_lengths:
        yield not_claimed(check, "no mask that counts positions at L != S is claimed")
        return
    for part in parts:
        yield planned(check, part, subject, part)


def _patterns(subject: VariantSubject) -> Iterator[Check]:
    check = windows.check_declared_pattern
    if _pattern(subject, SQUARE.keys) is None:
        yield not_claimed(check, "no pattern is declared")
        return
    if not subject.backward:
        yield not_claimed(check, "gradients are not claimed")
        return
    lengths = [(12, 12), (37, 37)]
    if subject.capabilities.unequal_lengths:
        lengths.append((5, 12))
    for queries, keys in lengths:
        yield planned(check, f"{queries}of{keys}", subject, queries, keys)


def _eviction(subject: VariantSubject) -> Iterator[Check]:
    check, claims = state_sizes.check_window_cache_eviction, subject.capabilities
    promised = subject.promised_window
    if claims.state == "none" or not (_asked(subject) or promised):
        yield not_claimed(check, "no decoding under a window is claimed")
        return
    by = "mask" if promised is None else "options"
    window = ASKED[0] + 1 if promised is None else promised[0] + 1
    if window > WIDEST:
        yield _too_wide(check, window)
        return
    for name, chunk in state_sizes.cuts(window).items():
        yield planned(check, name, subject, window, chunk, by)


def _state_size(subject: VariantSubject) -> Iterator[Check]:
    check = state_sizes.check_state_size
    if subject.capabilities.state == "none":
        yield not_claimed(check, "no decoding state is claimed")
        return
    promised = subject.promised_window
    if promised is not None and promised[0] >= WIDEST:
        yield _too_wide(check, promised[0] + 1)
        return
    for mode in ("no_grad", *(("gradients",) if subject.backward else ())):
        yield planned(check, mode, subject, mode)
