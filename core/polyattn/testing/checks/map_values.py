"""M. Feature maps in narrow dtypes, and with pixels left out: against the definition."""

from __future__ import annotations

import math

import torch

from polyattn.testing.results import proves
from polyattn.testing.subjects.feature_maps import FeatureMapSubject, against_map_definition
from polyattn.testing.subjects.sequence import blaming
from polyattn.testing.tools.cases import normal
from polyattn.testing.tools.numerics import compare, need_finite, need_tensor, value_tolerance

MANY: dict[int, tuple[int, ...]] = {
    1: (1, 4, 66_000),
    2: (1, 4, 256, 257),
    3: (1, 4, 40, 41, 42),
}
"""Maps of more than 65 504 pixels: their sum at a mean of 1.3 is beyond float16."""


@proves(
    "In narrow dtypes the output and the gradients lose no more than the definition does in the "
    "same dtype (3 times its error, and two roundings).",
    causes=(
        "a constant, a table or an intermediate in a narrower dtype",
        "a long sum in the input's dtype: use kit.accumulation_dtype",
    ),
    claim="devices (dtypes)",
)
def check_fm_low_precision_error(
    subject: FeatureMapSubject, size: tuple[int, ...], dtype: torch.dtype
) -> None:
    against_map_definition(subject, size, dtype=dtype)


@proves(
    "The range of a half type suffices: maps of many pixels, and loud ones, give finite numbers, "
    "and the gate of many pixels is that of the definition.",
    causes=(
        "a sum over pixels in float16, which overflows at 65 504",
        "a square or a product of activations in float16",
        "an overflow that was clamped or cleaned away",
    ),
    claim="devices (dtypes)",
)
def check_fm_half_range(
    subject: FeatureMapSubject, size: tuple[int, ...], dtype: torch.dtype, loudness: float
) -> None:
    """A map of ``MANY`` is compared with the definition, at a mean of one loudness."""
    module = subject.build(size[1], dtype)
    drawn = normal(*size, seed=9)
    many = math.prod(size[2:]) > 65_504
    x = ((1.0 + 0.25 * drawn) * loudness if many else drawn.sign() * loudness).to(dtype)
    given = f"x {size}, {dtype}, {loudness:g} loud"
    with blaming(given), torch.no_grad():
        out = need_tensor("the output", module(x), given)
    need_finite("the output", out, given)
    if not many:
        return
    with blaming("the definition, " + given), torch.no_grad():
        want = subject.definition(module.double(), x.double())
    allowed = value_tolerance(want, None, dtype)
    compare("the output", out, want, tolerance=allowed, given=given)


@proves(
    "Any pattern of real pixels gives the output and the gradients of the definition, a sample "
    "without any included.",
    causes=(
        "a division by the number of real pixels, where there are none",
        "keep read as the box around the real pixels, or transposed",
        "an output that is cleaned of NaN, whose gradients are not",
    ),
    claim="keep",
)
def check_fm_keep_matches_reference(
    subject: FeatureMapSubject, size: tuple[int, ...], case: str
) -> None:
    """``case``: "holes", "nothing" (the first sample has no real pixel) or "everything"."""
    keep = normal(size[0], *size[2:], seed=10) > -0.3
    if case == "nothing":
        keep[0] = False
    if case == "everything":
        keep.fill_(True)
    against_map_definition(subject, size, keep=keep)
