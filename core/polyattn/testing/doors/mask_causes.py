"""What is wrong with a mask or a causal flag, by computing what people write by mistake."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from polyattn.testing.doors.causes import Cause
from polyattn.testing.doors.function import Calling, Flow
from polyattn.testing.doors.masks import Meaning, mask_of
from polyattn.testing.doors.probe import Probe
from polyattn.testing.doors.reference import LOOSE, distance, softmax_of, triangle
from polyattn.testing.doors.signatures import CAUSAL, OUT, SCORES, candidates
from polyattn.testing.tools.cases import Sample, normal

CLOSE = "scores = scores.masked_fill(~keep, -math.inf)  # before the softmax; keep: True may attend"
EMPTY = (
    "empty = ~keep.any(-1, keepdim=True)\n"
    "weights = scores.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0)"
)
FILLS = (1.0, 10.0, 100.0, 1e3, 1e4, 65504.0, 1e5)
"""Magnitudes that are met in place of infinity, and that logits can reach."""

Candidate = tuple[Cause, Tensor]


def meaning_of(calling: Calling) -> Meaning:
    """How its masks are handed on."""
    if calling.as_floats:
        return "floats"
    if calling.as_ones:
        return "ones"
    return "attend" if calling.true_attends else "masked"


def mask_cause(probe: Probe, calling: Calling, flow: Flow) -> Cause | None:
    """What is wrong with its masks, where that is known; None too where nothing is."""
    sample = probe.sample()
    keep = _some_keep(sample, calling)
    got = probe.tried(sample, **_handed(probe, calling, keep))
    open_ = _flowing(sample, flow)
    if got is None or distance(got, softmax_of(sample, keep & open_)) < LOOSE:
        return None if got is None else fill_cause(probe, calling, flow)
    if _inverted(got, sample, ~keep & open_):
        return Cause(name="the mask is inverted: what it should close is open", write=CLOSE)
    for cause, expected in _mask_candidates(sample, keep, open_):
        if distance(got, expected) < LOOSE:
            return cause
    return None


def _inverted(got: Tensor, sample: Sample, keep: Tensor) -> bool:
    """Whether ``keep`` (B, H, L, S) is what is seen, in the rows that it leaves a key.

    Of the others nothing is asked: where the mask closes nothing, its opposite closes all, and such
    rows are NaN, zeros or a mean.
    """
    rows = keep.any(-1, keepdim=True)
    if not bool(rows.any()):
        return False
    zero = got.new_zeros(())
    seen = softmax_of(sample, keep)
    return distance(torch.where(rows, got, zero), seen.masked_fill(~rows, 0.0)) < LOOSE


def _handed(probe: Probe, calling: Calling, keep: Tensor) -> dict[str, Any]:
    assert calling.mask_arg is not None
    mask = mask_of(probe, keep, calling.mask_form, meaning_of(calling))
    return {calling.mask_arg: mask}


def _flowing(sample: Sample, flow: Flow) -> Tensor:
    length, keys = sample.lengths
    keep = triangle(length, keys)
    return keep if flow == "causal" else torch.ones_like(keep)


def _some_keep(sample: Sample, calling: Calling) -> Tensor:
    """(B, H, L, S), in what its form can say; every row sees its own key and the first."""
    batch, heads, length, _ = sample.q.shape
    sizes = {"full": (batch, heads, length), "pairs": (1, 1, length), "keys": (batch, 1, 1)}
    size = (*sizes[calling.mask_form], sample.k.shape[2])
    keep = normal(*size, seed=97) > 0
    keep[..., 0] = True
    if calling.mask_form == "keys":
        keep[..., -1] = False
    else:
        keep = keep | torch.eye(length, sample.k.shape[2], dtype=torch.bool)
    return keep.expand(batch, heads, length, -1)


def _mask_candidates(sample: Sample, keep: Tensor, open_: Tensor) -> Iterator[Candidate]:
    wide = sample.to(torch.float64)
    logits = wide.q @ wide.k.mT * sample.q.shape[3] ** -0.5
    shut = logits.masked_fill(~open_, -math.inf)
    both = keep & open_

    def attend(x: Tensor) -> Tensor:
        return x.softmax(-1) @ wide.v

    ones, zeros = keep.double(), (~keep).double()
    forms = {
        "the mask is never used": attend(shut),
        "the mask comes after the softmax: the rows no longer sum to one": (
            (shut.softmax(-1) * keep) @ wide.v
        ),
        "the mask is added as a number, 0 or 1: what it closes still counts": attend(shut + ones),
        "the mask is added as a number, True as 1": attend(shut + zeros),
        "the mask is subtracted as a number, 0 or 1": attend(shut - ones),
        "the mask is subtracted as a number, True as 1": attend(shut - zeros),
        "closed logits are set to 0, which is no -inf: they still count": attend(
            logits.masked_fill(~both, 0.0).masked_fill(~open_, -math.inf)
        ),
        "the mask is inverted, and True is set to 0 in place of -inf": attend(
            shut.masked_fill(keep, 0.0)
        ),
        "the mask of the first sample is used for all": softmax_of(sample, keep[:1] & open_),
        "the mask of the first head is used for all": softmax_of(sample, keep[:, :1] & open_),
        "the causal mask is dropped where another is given": softmax_of(sample, keep),
        "masks are combined with or, not with and": softmax_of(sample, keep | open_),
    }
    forms |= _turned_or_filled(sample, shut, keep, open_)
    for name, expected in forms.items():
        yield Cause(name=name, write=CLOSE), expected


def _turned_or_filled(
    sample: Sample, shut: Tensor, keep: Tensor, open_: Tensor
) -> dict[str, Tensor]:
    """Masks that are transposed, and numbers in place of -inf."""
    values, both, zeros = sample.v.to(torch.float64), keep & open_, (~keep).double()
    forms: dict[str, Tensor] = {}

    def attend(x: Tensor) -> Tensor:
        return x.softmax(-1) @ values

    if keep.shape[-1] == keep.shape[-2]:
        turned = keep.mT & open_
        forms["the mask is transposed: its rows are taken for the keys"] = softmax_of(
            sample, turned
        )
        # Where a whole row is closed, code fills with a number or gives zeros.
        forms["the mask closes queries, not keys: it is turned the wrong way"] = attend(
            shut.masked_fill(~turned, -1e12)
        )
    for value in FILLS[:3]:
        told = "which is no -inf: they still count"
        forms[f"closed logits are set to {-value:g}, {told}"] = attend(
            shut.masked_fill(~both, -value).masked_fill(~open_, -math.inf)
        )
        forms[f"{-value:g} is added to closed logits, {told}"] = attend(shut + zeros * -value)
    return forms


def fill_cause(probe: Probe, calling: Calling, flow: Flow) -> Cause | None:
    """The number that stands for minus infinity, where logits can reach it."""
    if calling.mask_arg is None and flow != "causal":
        return None
    kept = probe.dtype
    for dtype in (torch.float64, torch.float32):
        probe.dtype = dtype
        try:
            trials = list(_loud_trials(probe, calling, flow))
        finally:
            probe.dtype = kept
        if trials:
            return _filled_with(trials)
    return None


Trial = tuple[Sample, Tensor, Tensor]


def _loud_trials(probe: Probe, calling: Calling, flow: Flow) -> Iterator[Trial]:
    """Samples with loud queries, what may be seen, and the outputs."""
    for loud in (30.0, 3e2, 3e3, 3e4, 2e5):
        base = probe.sample()
        sample = base.having(q=base.q * loud)
        keep = _flowing(sample, flow).expand(*sample.q.shape[:3], -1)
        keywords: Mapping[str, Any] = {}
        if calling.mask_arg is not None:
            some = _some_keep(sample, calling)
            keep, keywords = keep & some, _handed(probe, calling, some)
        got = probe.tried(sample, **keywords)
        if got is not None and got.dtype == probe.dtype:
            yield sample, keep, got


def _filled_with(trials: list[Trial]) -> Cause | None:
    """The one number that explains all trials, where minus infinity does not."""
    # Float32 has few digits left at such logits.
    wrong = [t for t in trials if distance(t[2], softmax_of(t[0], t[1])) > 1e-2]
    if not wrong:
        return None
    for value in FILLS:
        for added in (False, True):
            if all(distance(t[2], _fill(t[0], t[1], value, added)) < 1e-2 for t in trials):
                name = f"closed logits get {-value:g}, no -inf: large logits win against it"
                told = f"with larger and larger queries, the output is that of {-value:g}"
                return Cause(name=name, write=CLOSE, seen=told)
    return None


def _fill(sample: Sample, keep: Tensor, value: float, added: bool) -> Tensor:
    wide = sample.to(torch.float64)
    logits = wide.q @ wide.k.mT / math.sqrt(sample.q.shape[3])
    shut = logits - value * ~keep if added else logits.masked_fill(~keep, -value)
    return shut.softmax(-1) @ wide.v


def empty_row_cause(probe: Probe, calling: Calling, flow: Flow) -> Cause | None:
    """What a row gives that sees no key, where it is not zeros."""
    sample = probe.sample()
    keep = torch.ones(*sample.q.shape[:3], sample.k.shape[2], dtype=torch.bool)
    if calling.mask_form == "keys":
        keep[1] = False
    else:
        keep[:, :, 2] = False
    got = probe.tried(sample, **_handed(probe, calling, keep))
    if got is None:
        return None
    row = got[1, :, 2].detach().double()
    mean, open_ = sample.v[1].double().mean(-2), softmax_of(sample, _flowing(sample, flow))
    seen = sample.v[1, :, :3].double().mean(-2)
    if bool(row.isnan().any()):
        name = "a row without a key is NaN: the softmax of -inf alone"
    elif any(bool(torch.isclose(row, x, atol=1e-4).all()) for x in (mean, seen)):
        name = "a row without a key is the mean of all values: closed logits are a finite number"
    elif bool(torch.isclose(row, open_[1, :, 2], atol=1e-4).all()):
        name = "a row without a key sees all of them: a finite number is added to its logits"
    else:
        return None
    return Cause(name=name, write=EMPTY, seen="row 2 closed for every key")


def bias_cause(probe: Probe, calling: Calling, flow: Flow) -> Cause | None:
    """What is done with a float mask in place of adding it to the scaled logits."""
    assert calling.mask_arg is not None
    sample = probe.sample()
    batch, heads, length, width = sample.q.shape
    bias = normal(batch, heads, length, sample.k.shape[2], seed=99)
    mask = probe.layout.mask(bias.to(sample.dtype), "full", heads)
    got = probe.tried(sample, **{calling.mask_arg: mask})
    if got is None:
        return None
    keep = _flowing(sample, flow)
    plain = softmax_of(sample, keep)
    for name, expected in {
        "a float mask is added before the scale, which then shrinks it": softmax_of(
            sample, keep, bias=bias * width**-0.5
        ),
        "a float mask is subtracted": softmax_of(sample, keep, bias=-bias),
        "a float mask is never used": plain,
        "a float mask is transposed": softmax_of(sample, keep, bias=bias.mT),
    }.items():
        if distance(got, expected) < LOOSE:
            return Cause(name=name, write=f"{SCORES} + bias")
    return None


def flag_cause(probe: Probe, flag: str) -> Cause | None:
    """What the flag does that should make it causal, where that is known."""
    sample = probe.sample()
    got = probe.tried(sample, **{flag: True})
    causal = triangle(*sample.lengths)
    if got is None or distance(got, softmax_of(sample, causal)) < LOOSE:
        return None
    if distance(got, softmax_of(sample)) < LOOSE:
        return Cause(name=f"{flag}=True changes nothing", write=f"if {flag}:\n    {_indented()}")
    for cause, expected in candidates(sample):
        if distance(got, expected) < LOOSE:
            return Cause(name=f"under {flag}=True, {cause.name}", write=cause.write)
    return None


def _indented() -> str:
    return CAUSAL.replace("\n", "\n    ")


def grouped_cause(probe: Probe) -> Cause | None:
    """Whether key heads are tiled over the query heads in place of repeated."""
    sample = probe.sample(heads=4, kv_heads=2)
    got = probe.tried(sample)
    if got is None:
        return None
    tiled = sample.having(k=sample.k.repeat(1, 2, 1, 1), v=sample.v.repeat(1, 2, 1, 1))
    for keep in (None, triangle(*sample.lengths)):
        if distance(got, softmax_of(tiled, keep)) < LOOSE:
            return Cause(
                name="key heads are tiled over the query heads (repeat), not repeated in groups",
                write="k = k.repeat_interleave(H // Hkv, dim=1)  # v alike",
            )
    return None


def overflow_cause(probe: Probe, flow: Flow, scale: float | None = None) -> Cause | None:
    """Whether large logits break a softmax that is right, with this scale, for small ones."""
    base = probe.sample()
    keep = triangle(*base.lengths) if flow == "causal" else None
    length = base.lengths[0]
    for name, signs in (
        (
            "the exponentials overflow: the row's maximum is not subtracted first",
            torch.ones(length),
        ),
        (
            "the maximum that is subtracted is not the row's own: quiet rows round to zero",
            torch.where(torch.arange(length) % 2 == 0, 1.0, -1.0),
        ),
    ):
        # A number that all logits of a row share changes nothing in a softmax.
        q, k = base.q.clone(), base.k.clone()
        k[..., 0] = 6.0
        q[..., 0] = 35.0 / (scale or q.shape[3] ** -0.5) * signs
        sample = base.having(q=q, k=k)
        got = probe.tried(sample)
        right = softmax_of(sample, keep, scale=scale)
        if got is not None and distance(got, right) > 1e-2:
            told = "at logits beyond 200 the output is NaN or far off, in float32"
            return Cause(name=name, write=f"{SOFTMAX_SAFE}\n{OUT}", seen=told)
    return None


SOFTMAX_SAFE = (
    "exp = (scores - scores.amax(-1, keepdim=True)).exp()\n"
    "weights = exp / exp.sum(-1, keepdim=True)  # or scores.softmax(-1)"
)
