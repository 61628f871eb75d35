"""What a computation is instead, where it is neither full nor causal softmax attention."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from polyattn.testing.cases import Sample
from polyattn.testing.door_probe import LOOSE, distance, softmax_of, triangle


def diagnose(got: Tensor, sample: Sample) -> str:
    """``it is softmax attention without the scale``, or what else is known of it."""
    for name, candidate in _candidates(sample):
        if distance(got, candidate) < LOOSE:
            return f"it equals {name}"
    errors = {
        "full": distance(got, softmax_of(sample)),
        "causal": distance(got, softmax_of(sample, triangle(*sample.lengths))),
    }
    nearest = min(errors, key=lambda name: errors[name])
    return (
        f"it is nearest to {nearest} softmax attention, at a relative error of "
        f"{errors[nearest]:.2g}"
    )


def _candidates(sample: Sample) -> Iterator[tuple[str, Tensor]]:
    """Wrong forms that are often met, by name."""
    length, keys = sample.lengths
    width, heads = sample.q.shape[3], sample.q.shape[1]
    causal = triangle(length, keys)
    scales = {
        "without the scale 1/sqrt(D)": 1.0,
        "with the scale 1/D": 1 / width,
        "multiplied by sqrt(D) in place of divided": width**0.5,
        "with the scale 1/sqrt(H D), the width of the model": (width * heads) ** -0.5,
        "with the scale 1/sqrt(H)": heads**-0.5,
        "with the scale 1/sqrt(L)": length**-0.5,
    }
    for flow, keep in (("full", None), ("causal", causal)):
        for name, scale in scales.items():
            yield f"{flow} softmax attention {name}", softmax_of(sample, keep, scale=scale)
    for name, keep in (
        ("a strict mask, j < i, that hides the query's own key", causal.tril(-1)),
        ("a mask the other way round, j >= i", causal.mT),
        ("a mask inverted, j > i", ~causal),
    ):
        yield f"softmax attention under {name}", softmax_of(sample, keep)
    wide = sample.to(torch.float64)
    logits = wide.q @ wide.k.mT * width**-0.5
    yield "attention with the softmax over the queries", logits.softmax(-2) @ wide.v
    yield "attention with the softmax over the heads", logits.softmax(1) @ wide.v
    yield "attention without a softmax", logits @ wide.v
    shut = logits.softmax(-1) * causal
    yield "attention masked after the softmax, its rows not summing to one", shut @ wide.v
    yield (
        "full softmax attention with keys and values exchanged",
        softmax_of(sample.having(k=sample.v, v=sample.k)),
    )
