"""M. Hidden widths of feature maps, where options say how wide they are."""

from __future__ import annotations

from polyattn.testing.results import Mismatch, Seen, proves
from polyattn.testing.subjects.sequence import blaming
from polyattn.testing.subjects.variant import FeatureMapVariant

WIDTHS: tuple[tuple[int, float, int], ...] = ((64, 0.125, 1), (44, 0.15, 1), (12, 0.0625, 5))
"""Channels, ratio and least width: where dividing, rounding down and forgetting the least differ
from ``max(min_width, round(channels * ratio))``."""


@proves(
    "With the options ratio and min_width the hidden width is max(min_width, round(channels * "
    "ratio)).",
    causes=(
        "the reduction taken for the width, r for C // r",
        "rounded down, which is zero for few channels",
        "an option that is read and not used",
    ),
    claim="the options ratio and min_width",
)
def check_fm_hidden_width(
    subject: FeatureMapVariant, channels: int, ratio: float, min_width: int
) -> None:
    given = f"channels {channels}, ratio {ratio:g}, min_width {min_width}"
    with blaming(given):
        config = type(subject.config)(
            **{**dict(subject.config), "ratio": ratio, "min_width": min_width}
        )
        module = subject.variant(config, channels)
    width = max(min_width, round(channels * ratio))
    sizes = {size for parameter in module.parameters() for size in parameter.shape}
    if width not in sizes:
        what = f"no parameter has a side of {width}; their sides are {sorted(sizes)}"
        raise Mismatch(Seen(what=what, given=given))


def has_widths(subject: FeatureMapVariant) -> bool:
    """Whether its options say how wide it is inside."""
    fields = type(subject.config).model_fields
    return "ratio" in fields and "min_width" in fields
