"""The checks of feature maps that a subject's claims ask for."""

from __future__ import annotations

from collections.abc import Iterator

from polyattn.testing.checks import feature_maps as checks
from polyattn.testing.checks.refusals import name_of
from polyattn.testing.feature_maps import FeatureMapSubject
from polyattn.testing.planned import Check, planned

SIZES: dict[int, tuple[tuple[int, ...], ...]] = {
    1: ((3, 8, 7), (2, 5, 1)),
    2: ((3, 8, 5, 7), (1, 8, 6, 6), (2, 8, 1, 1), (2, 8, 1, 9), (2, 7, 4, 3), (2, 1, 3, 4)),
    3: ((2, 8, 3, 4, 5), (1, 6, 1, 2, 1)),
}
"""Maps (B, C, *spatial) by their number of spatial dimensions; H never equals W by chance."""


def feature_maps(subject: FeatureMapSubject) -> Iterator[Check]:
    """Group M."""
    for dims in sorted(subject.capabilities.spatial_dims):
        for size in SIZES[dims]:
            label = "x".join(str(n) for n in size)
            for dtype in sorted(subject.dtypes, key=str):
                yield planned(
                    checks.check_fm_shape_grid,
                    f"{label}-{name_of(dtype)}",
                    subject,
                    size,
                    dtype,
                )
            yield planned(checks.check_fm_matches_reference, label, subject, size)
        size = SIZES[dims][0]
        label = "x".join(str(n) for n in size)
        yield planned(checks.check_fm_batch_independence, label, subject, size)
