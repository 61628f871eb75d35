"""What code from elsewhere is, in one line, once all its checks are done."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from polyattn.testing.doors.causes import DoorFailure, KnownFailure
from polyattn.testing.doors.function import Calling, FunctionSubject
from polyattn.testing.doors.roots import Root
from polyattn.testing.results import Result, cut_short, unfinished


def verdict(
    subject: FunctionSubject | None, roots: Sequence[Root], results: Sequence[Result]
) -> str:
    """``correct softmax attention, full; takes no mask; float16 not taken``."""
    bad = [result for result in results if not result.status.good]
    if subject is None:
        return without_an_answer(_why(bad))
    left = len(cut_short(results))
    if not bad:
        return unfinished(results) or f"{_kind(subject)}; {'; '.join(_takes(subject))}"
    ids = {root.check.id for root in roots}
    followed = [result for result in bad if result.id not in ids and _follows(result)]
    parts = ["not correct"]
    told = [root.told for root in roots]
    if told:
        parts.append(f"fix first: {told[0]}")
        parts += [f"then: {x}" for x in told[1:]]
    if followed:
        many = f"{len(followed)} more failures follow" if followed[1:] else "1 more failure follows"
        parts.append(f"{many} from that")
    others = {result.name for result in bad if result.id not in ids and result not in followed}
    if others:
        parts.append(f"{'besides' if told else 'failed'}: {', '.join(sorted(others))}")
    parts += [f"{left} checks were not run"] if left else []
    return "; ".join(parts)


WAYS_IN = ("hand over an instance", "another door?")
"""What a reason says where it was asked in the wrong way: of the code it says nothing."""


def without_an_answer(reason: str) -> str:
    """The verdict on what gave no answer at all: not correct, or not asked as it can be."""
    if any(way in reason for way in WAYS_IN):
        return f"it could not be asked: {reason}"
    return f"not correct; {reason}; nothing else could be checked"


def _follows(result: Result) -> bool:
    """Whether a finding explains it; the failure says so where it was not sent by a worker."""
    failure = result.failure
    return bool(result.follows or (isinstance(failure, DoorFailure) and failure.follows))


def _why(bad: Sequence[Result]) -> str:
    failures = [result.failure for result in bad]
    known = [x.cause.name for x in failures if isinstance(x, KnownFailure)]
    return f"fix first: {known[0]}" if known else bad[0].reason if bad else "it gives no answer"


def _kind(subject: FunctionSubject) -> str:
    calling = subject.calling
    flow = calling.flow if calling.causal_flag is None else "full, and causal on demand"
    if not subject.has_definition:
        return f"attention that breaks no rule, {flow}, compared with no reference"
    return f"correct softmax attention, {flow}"


def _masks(calling: Calling) -> str:
    """How masks go in; what True means is said, since an inverted mask looks like the other."""
    if calling.mask_arg is None:
        return "takes no mask"
    if calling.as_floats or calling.as_ones:
        return f"masks by {calling.mask_arg}"
    if calling.true_attends:
        return f"masks by {calling.mask_arg}, where True may attend"
    meant = "" if calling.polarity_told else " (where it was meant to attend: --true-means attend)"
    return f"masks by {calling.mask_arg}, where True is masked{meant}"


def _takes(subject: FunctionSubject) -> list[str]:
    calling, claims = subject.calling, subject.capabilities
    told = []
    if not calling.layout.native:
        sure = calling.layout_told or calling.layout.folded
        meant = "" if sure else ", where (B, H, L, D) may have been meant"
        told.append(f"reads {calling.layout.name}{meant}")
    if subject.width is not None:
        told.append(f"for heads of width {subject.width}")
    if claims.lengths.multiple_of > 1:
        told.append(f"lengths that are multiples of {claims.lengths.multiple_of}")
    told.append(_masks(calling))
    if not claims.unequal_lengths:
        told.append("L = S alone")
    if claims.grouped_heads == "no":
        told.append("as many key heads as query heads")
    wanted = (torch.float16, torch.bfloat16, torch.float64)
    missing = [
        str(x).removeprefix("torch.")
        for x in wanted
        if x not in subject.dtypes and x != subject.narrowed
    ]
    if missing:
        told.append(f"{', '.join(missing)} not taken")
    if subject.narrowed is not None:
        name = str(subject.narrowed).removeprefix("torch.")
        told.append(f"{name} is taken, and computed in a narrower type")
    if not subject.backward:
        told.append("no gradients")
    return told
