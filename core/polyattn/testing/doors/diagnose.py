"""What a computation is instead, where it is neither full nor causal softmax attention."""

from __future__ import annotations

import torch
from torch import Tensor

from polyattn.testing.doors.causes import Cause
from polyattn.testing.doors.layout import LAYOUTS
from polyattn.testing.doors.probe import Probe, keywords_of
from polyattn.testing.doors.reference import LOOSE, distance, softmax_of, triangle
from polyattn.testing.doors.signatures import (
    CAUSAL,
    candidates,
    fitted_epsilon,
    fitted_factor,
    fitted_scale,
)
from polyattn.testing.process.settings import settings_restored
from polyattn.testing.tools.cases import Sample

RANDOM = Cause(
    name="it gives something else at each call: dropout that evaluation does not switch off",
    write="F.dropout(weights, p, training=self.training)  # or dropout_p = 0.0",
    seen="another seed gives another output",
)
TIGHT = 1e-5
"""For what is fitted: with a free number, more looks alike."""


def recognised(probe: Probe) -> Cause | None:
    """The cause of the difference, where it is one of those that are known."""
    sample = probe.sample()
    got = probe.tried(sample)
    if got is None or not bool(got.isfinite().all()):
        return None
    if _random(probe, sample, got):
        return RANDOM
    other = _another(probe)
    for cause, expected in candidates(sample):
        if distance(got, expected) < LOOSE and _holds(cause, other):
            return _by_unequal_lengths(probe, cause, sample, got)
    for fit in (fitted_scale, fitted_factor):
        fitted = fit(got, sample, TIGHT)
        if fitted is not None:
            return fitted
    return _epsilon(probe) or _narrow(sample, got)


def _epsilon(probe: Probe) -> Cause | None:
    """Something in the denominator: in float64, where it is taken, since it may be small."""
    for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, TIGHT)):
        sample = probe.sample(dtype=dtype)
        got = probe.tried(sample)
        if got is not None and got.dtype == dtype:
            return fitted_epsilon(got, sample, tolerance)
    return None


def _narrow(sample: Sample, got: Tensor) -> Cause | None:
    """Softmax attention that was computed in fewer digits: its outputs have no more than those."""
    for dtype, tolerance in ((torch.float16, 2e-3), (torch.bfloat16, 2e-2)):
        if not torch.equal(got.to(dtype).to(got.dtype), got):
            continue
        rounded = sample.to(dtype)
        for keep in (None, triangle(*sample.lengths)):
            if distance(got, softmax_of(rounded, keep)) < tolerance:
                name = str(dtype).removeprefix("torch.")
                told = f"it computes in {name} where float32 is given: few digits are left"
                write = "softmax and products in the dtype of q, or refuse float32"
                return Cause(name=told, write=write, seen=f"right for inputs rounded to {name}")
    return None


def not_finite(probe: Probe, got: Tensor) -> tuple[str, Cause | None]:
    """Where NaN or infinity stands in the output of a plain call, and why where that is known."""
    kept = probe.layout
    for layout in LAYOUTS[:4]:
        probe.layout = layout
        cause = _closed_rows(probe)
        if cause is not None:
            return f"NaN or infinity, {_where(probe.tried(probe.sample()))}", cause
    probe.layout = kept
    return f"NaN or infinity, {_where(got)}", None


def _where(got: Tensor | None) -> str:
    """The rows (of queries) in which something is not finite."""
    if got is None:
        return "in some rows"
    bad = (~got.isfinite()).any(-1).flatten(0, 1).any(0)
    rows = bad.nonzero().flatten().tolist()
    if bool(bad.all()):
        return "in every row"
    return f"in row{'s' if rows[1:] else ''} {', '.join(map(str, rows))} of {len(bad)} alone"


def _closed_rows(probe: Probe) -> Cause | None:
    """A causal mask that leaves a row no key: turned round, or without its own key."""
    sample = probe.sample()
    got = probe.tried(sample)
    if got is None or sample.lengths[0] != sample.lengths[1]:
        return None
    causal = triangle(*sample.lengths)
    for name, keep in {
        "the causal mask is inverted: it closes what came before, and leaves the last row no key": (
            ~causal
        ),
        "the causal mask closes a query's own key, too, and leaves the first row no key": (
            causal.tril(-1)
        ),
    }.items():
        rows = keep.any(-1)
        if bool(got[:, :, ~rows].isfinite().all()):
            continue
        if distance(got[:, :, rows], softmax_of(sample, keep)[:, :, rows]) < LOOSE:
            told = "the other rows are those of that mask, to four digits"
            return Cause(name=name, write=CAUSAL, seen=told)
    return None


def nearest(probe: Probe) -> str:
    """How far it is from softmax attention, where it is nothing that is known."""
    sample = probe.sample()
    got = probe.call(sample)
    errors = {
        "full": distance(got, softmax_of(sample)),
        "causal": distance(got, softmax_of(sample, triangle(*sample.lengths))),
    }
    name = min(errors, key=lambda name: errors[name])
    return f"it is nearest to {name} softmax attention, at a relative error of {errors[name]:.2g}"


def _random(probe: Probe, sample: Sample, got: Tensor) -> bool:
    """Whether it draws random numbers; every call starts from the same state otherwise."""
    with settings_restored():
        torch.manual_seed(7)
        again = probe.tried(sample)
    return again is not None and not torch.equal(got, again)


def _another(probe: Probe) -> tuple[Sample, Tensor] | None:
    """An answer at other sizes: at some, two causes look the same (1/8 is 1/D where D = 8)."""
    samples = [probe.sample(heads=3)]
    if probe.length == 6:
        samples.insert(0, probe.sample(heads=3, queries=5, keys=5, width=12))
    for sample in samples:
        got = probe.tried(sample)
        if got is not None:
            return sample, got
    return None


def _by_unequal_lengths(probe: Probe, cause: Cause, sample: Sample, got: Tensor) -> Cause:
    """Of scales that are the same where L = S, such as 1/sqrt(L) and 1/sqrt(S), the one meant."""
    if not isinstance(cause.scale, str):
        return cause
    uneven = probe.sample(heads=3, queries=probe.length, keys=2 * probe.length)
    out = probe.tried(uneven)
    if out is None or _holds(cause, (uneven, out)):
        return cause
    rivals = [
        rival
        for rival, expected in candidates(sample)
        if isinstance(rival.scale, str) and distance(got, expected) < LOOSE
    ]
    return next((rival for rival in rivals if _holds(rival, (uneven, out))), cause)


def _holds(cause: Cause, other: tuple[Sample, Tensor] | None) -> bool:
    """Whether the same cause explains what came at other sizes; True where it says nothing."""
    if other is None:
        return True
    sample, got = other
    same = [x for known, x in candidates(sample) if known.name == cause.name]
    return not same or any(distance(got, x) < LOOSE for x in same)


def pattern(probe: Probe) -> Cause | None:
    """Softmax attention over fewer keys: which, is seen from whose values count."""
    sample = probe.sample()
    length = sample.lengths[0]
    got = probe.tried(sample)
    if length > 16 or got is None:
        return None
    seen = torch.zeros(length, length, dtype=torch.bool)
    for j in range(length):
        changed = sample.v.clone()
        changed[:, :, j] += 1.0
        out = probe.tried(sample.having(v=changed))
        if out is None:
            return None
        seen[:, j] = (out - got).abs().amax((0, 1, 3)) > 1e-6
    if distance(got, softmax_of(sample, seen)) > LOOSE:
        return None
    return Cause(name=f"not every key is seen: {_told(probe, seen)}", write="")


def _told(probe: Probe, seen: Tensor) -> str:
    """A pattern in words: a window, or row by row."""
    length = len(seen)
    offsets = [j - i for i, j in seen.nonzero().tolist()]
    left, right = -min(offsets, default=0), max(offsets, default=0)
    where = torch.arange(length)
    apart = where - where[:, None]
    if torch.equal(seen, (apart >= -left) & (apart <= right)):
        told = f"query i sees the keys i - {left} to i + {right}, {left + right + 1} of them"
        return told + _promised(probe, left + right + 1)
    rows = [f"query {i} sees {seen[i].nonzero().flatten().tolist()}" for i in range(length)]
    return "; ".join(rows[:3]) + ("" if length < 4 else "; ...")


def _promised(probe: Probe, count: int) -> str:
    """What a default of the function says of its window."""
    for name, parameter in (keywords_of(probe.function) or {}).items():
        said = parameter.default
        if "window" in name and isinstance(said, int) and count not in (said, 2 * said + 1):
            return f", and {name} = {said}: off by {abs(count - said)}"
    return ""
