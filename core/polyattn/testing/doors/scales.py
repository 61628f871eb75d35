"""Wrong scales of the logits, by what is said of them; they depend on the sizes of a call."""

from __future__ import annotations

import math

from polyattn.testing.tools.cases import Sample


def scale_of(scale: float | str | None, sample: Sample) -> float | None:
    """The number that a rule, or a number, or None for the usual scale, gives for a sample."""
    return named_scales(sample)[scale] if isinstance(scale, str) else scale


def named_scales(sample: Sample) -> dict[str, float]:
    """Each rule, and the scale that it gives for these sizes."""
    (_, heads, length, width), keys = sample.q.shape, sample.k.shape[2]
    usual = width**-0.5
    return {
        "the logits are not scaled: 1/sqrt(D) is missing": 1.0,
        "the logits are scaled by 1/D, not by 1/sqrt(D): scaled twice, or a sqrt is missing": (
            1 / width
        ),
        "the logits are multiplied by sqrt(D) where they should be divided": width**0.5,
        "the logits are scaled by the width of the model, 1/sqrt(H D), not by that of a head": (
            usual * heads**-0.5
        ),
        "the logits are scaled by 1/sqrt(H), the number of heads: another dimension is read": (
            heads**-0.5
        ),
        "the logits are scaled by 1/sqrt(L), the length: another dimension is read": length**-0.5,
        "the logits are scaled by 1/sqrt(S), the length: another dimension is read": keys**-0.5,
        "the softmax has base 2: 2**x without the factor log2(e)": usual * math.log(2),
        "the logits are multiplied by log2(e), and the softmax has base e": usual / math.log(2),
        "the logits are scaled by 1/(2 sqrt(D))": usual / 2,
        "the sign of the logits is inverted": -usual,
    }
