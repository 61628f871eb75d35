"""Why a plain call gives something of another shape, where it is a known mistake."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from polyattn.testing.doors.causes import Cause
from polyattn.testing.doors.probe import Probe
from polyattn.testing.doors.reference import LOOSE, distance, softmax_of, triangle
from polyattn.testing.tools.numerics import unfit


def misplaced(probe: Probe) -> Cause | None:
    """The cause, where the right numbers stand in another order or place."""
    sample = probe.sample()
    try:
        with probe.guarded():
            tensors = (sample.q.clone(), sample.k.clone(), sample.v.clone())
            got = probe.function(*tensors, **probe.full(sample, {}))
    except Exception:
        return None
    if isinstance(got, Tensor) and (unfit(got) or got.shape == sample.q.shape):
        return None
    right = softmax_of(sample), softmax_of(sample, triangle(*sample.lengths))
    if isinstance(got, tuple | list):
        return _in_a_tuple(list(got), right)
    if isinstance(got, dict):
        return Cause(name="a dict is returned, not the output", write="return out")
    if not isinstance(got, Tensor):
        return None
    for want in right:
        for cause, expected in _placed(want):
            if got.shape == expected.shape and distance(got, expected) < LOOSE:
                return cause
    return None


def _in_a_tuple(got: list[Any], right: tuple[Tensor, ...]) -> Cause | None:
    for place, x in enumerate(got[1:], start=1):
        fit = isinstance(x, Tensor) and not unfit(x)
        if fit and any(x.shape == want.shape and distance(x, want) < LOOSE for want in right):
            name = f"the output is entry {place} of a tuple: expected by itself, or first"
            return Cause(name=name, write="return out, weights")
    return None


def _placed(out: Tensor) -> Iterator[tuple[Cause, Tensor]]:
    batch, heads, length, width = out.shape
    back = "the output is (B, L, H, D), the inputs are (B, H, L, D): one transpose too many"
    yield Cause(name=back, write="return out  # without transpose(1, 2)"), out.transpose(1, 2)
    merged = "the heads are merged, (B, L, H D): this door asks for (B, H, L, D)"
    write = "return out  # (B, H, L, D); merge the heads outside"
    yield (
        Cause(name=merged, write=write),
        out.transpose(1, 2).reshape(batch, length, heads * width),
    )
    wrong = (
        "the heads are merged by a reshape without a transpose: heads and positions are mixed, "
        "and (B, H, L, D) was asked for"
    )
    write = "return out  # (B, H, L, D); outside: out.transpose(1, 2).reshape(B, L, H * D)"
    yield Cause(name=wrong, write=write), out.reshape(batch, length, heads * width)
    if batch > 1:
        yield (
            Cause(name="the output is (B, H, D, L): transpose it back", write="return out.mT"),
            out.mT,
        )
    for axes in ((0, 1), (0, 2)):
        flat = torch.flatten(out, *axes)
        told = "batch and heads are still one dimension in the output"
        yield Cause(name=told, write="return out.view(B, H, L, D)"), flat
