"""The checks of hidden widths, which options of a feature map ask for."""

from __future__ import annotations

from collections.abc import Iterator

from polyattn.testing.checks.map_widths import WIDTHS, check_fm_hidden_width, has_widths
from polyattn.testing.planned import Check, not_claimed, planned
from polyattn.testing.subjects.feature_maps import FeatureMapSubject
from polyattn.testing.subjects.variant import FeatureMapVariant


def hidden_widths(subject: FeatureMapSubject) -> Iterator[Check]:
    """Part of group M."""
    if not isinstance(subject, FeatureMapVariant) or not has_widths(subject):
        reason = "it has no options ratio and min_width"
        yield not_claimed(check_fm_hidden_width, reason)
        return
    for channels, ratio, least in WIDTHS:
        label = f"{channels}-{ratio:g}-{least}"
        yield planned(check_fm_hidden_width, label, subject, channels, ratio, least)
