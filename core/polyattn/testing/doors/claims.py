"""What a function of (q, k, v) was seen to take, as claims: these the suite then proves."""

from __future__ import annotations

import copy
import dataclasses

import torch

from polyattn.capabilities import FLOATS, Capabilities, Lengths, Part, Support
from polyattn.testing.doors import probe as trying
from polyattn.testing.doors.function import Calling, Flow, FunctionSubject
from polyattn.testing.doors.masks import PARTS_OF
from polyattn.testing.doors.probe import Probe
from polyattn.testing.doors.reference import LOOSE, distance, softmax_of, triangle


def claim(subject: FunctionSubject, probe: Probe, known: Flow | None, *, softmax: bool) -> None:
    """What it was seen to take, as claims."""
    calling = subject.calling
    masks: set[Part] = set(PARTS_OF[calling.mask_form]) if calling.mask_arg else set()
    if calling.adds_floats:
        masks |= {"bias", "alibi"}
    causal = calling.flow == "causal"
    if calling.causal_flag or causal:
        masks.add("causal")
    unequal = probe.tried(probe.sample(queries=probe.length, keys=2 * probe.length)) is not None
    if not unequal:
        probe.say(f"L and S must be equal ({probe.error})")
    by_tensor = calling.mask_arg is not None and calling.mask_form != "keys" and not causal
    if unequal and "causal" in masks and not by_tensor:
        subject.why_square_only = _alignment(probe, calling, known)
        unequal = unequal and not (causal and subject.why_square_only)
    groups = trying.grouped(probe)
    if groups is not None:
        subject.calling = dataclasses.replace(calling, grouped=groups)
    wide = probe.tried(probe.sample(value_dim=probe.width + 2)) is not None
    support = Support(dtypes=_dtypes(subject, probe, known), backward=trying.takes_gradients(probe))
    subject.capabilities = Capabilities(
        masks=frozenset(masks),
        requires=frozenset({"causal"} if causal else ()),
        unequal_lengths=unequal,
        grouped_heads="no" if groups is None else "native",
        value_width=wide and subject.width is None,
        lengths=Lengths(multiple_of=_step(probe)),
        devices={"cpu": support},
        exactness="exact" if softmax else "own kernel",
        rows_sum_to_one=softmax or _sums_to_one(probe),
        # Where every call has an order nobody has claimed that it does not matter.
        key_order_invariant=softmax and not causal,
    )


def _step(probe: Probe) -> int:
    """The number of which a length must be a multiple, as far as some lengths tell."""
    if probe.length > 6:
        return probe.length

    def taken(length: int) -> bool:
        return probe.tried(probe.sample(queries=length, keys=length)) is not None

    if taken(5) or taken(7):
        return 1
    reason = probe.error
    step = next((n for n in (2, 3) if taken(2 * n + 6) and taken(4 * n)), 6)
    probe.say(f"it takes no length of 5 or 7 ({reason}): checked at multiples of {step}")
    return step


def _alignment(probe: Probe, calling: Calling, known: Flow | None) -> str:
    """Why causal attention is checked at L = S alone; empty where it is checked everywhere."""
    sample = probe.sample(queries=probe.length, keys=2 * probe.length)
    flag = {calling.causal_flag: True} if calling.causal_flag else {}
    got = probe.tried(sample, **flag)
    if got is None:
        return f"causal with L < S is not taken: {probe.error}"
    if known is None or distance(got, softmax_of(sample, triangle(*sample.lengths))) < LOOSE:
        # The flag is only handed on where L = S; what it does elsewhere is seen here.
        return "the causal flag is checked at L = S" if flag else ""
    if distance(got, softmax_of(sample, triangle(*sample.lengths, last=False))) < LOOSE:
        note = (
            "causal with L < S aligns at the first key, as torch's is_causal does: right for a "
            "whole sequence, wrong for decoding with a cache"
        )
        probe.say(note)
        return note
    return "the causal flag is checked at L = S" if flag else ""


def _dtypes(subject: FunctionSubject, probe: Probe, known: Flow | None) -> frozenset[torch.dtype]:
    """The dtypes it takes. Float64 only where it computes in it: some code narrows inside."""
    taken = {torch.float32}
    for dtype in FLOATS - {torch.float32}:
        sample = probe.sample(dtype=dtype)
        function, kept = probe.function, probe.function
        if isinstance(function, torch.nn.Module):
            probe.function = copy.deepcopy(function).to(dtype)
        got = probe.tried(sample)
        probe.function = kept
        name = str(dtype).removeprefix("torch.")
        if got is None:
            probe.say(f"{name} is not taken ({probe.error})")
            continue
        if dtype == torch.float64 and known is not None:
            keep = triangle(*sample.lengths) if known == "causal" else None
            # Wider than that, it is no rounding to float32 but an error for the checks to find.
            if 1e-9 < distance(got, softmax_of(sample, keep)) < 1e-6:
                probe.say("float64 is computed in a narrower type: values are checked in float32")
                subject.narrowed = dtype
                continue
        taken.add(dtype)
    return frozenset(taken)


def _sums_to_one(probe: Probe) -> bool:
    """Whether the rows sum to one, as exactly as it computes; an epsilon in them is told."""
    worst = 0.0
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-10)):
        sample = probe.sample(dtype=dtype)
        got = probe.tried(sample.having(v=torch.ones_like(sample.v)))
        if got is None and dtype == torch.float32:
            return False
        if got is None or got.dtype != dtype:
            continue
        error = distance(got, torch.ones_like(got).double())
        worst = max(worst, error if error > tolerance else 0.0)
    if 0.0 < worst < 1e-3:
        probe.say(
            f"its rows sum to one up to {worst:.1g} alone, as with an epsilon in the denominator: "
            f"that they do is not checked"
        )
    return worst == 0.0
