"""The checks of feature maps that a subject's claims ask for."""

from __future__ import annotations

from collections.abc import Iterator

from polyattn.testing.checks import feature_maps as checks
from polyattn.testing.checks.compiling import check_fm_compile
from polyattn.testing.checks.refusals import DTYPES, name_of
from polyattn.testing.feature_maps import FeatureMapSubject
from polyattn.testing.planned import Check, planned, withheld
from polyattn.testing.results import Status

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
        if subject.capabilities.batch_independent:
            yield planned(checks.check_fm_batch_independence, label, subject, size)
    yield from _claimed(subject)
    yield from _unclaimed(subject)


def _claimed(subject: FeatureMapSubject) -> Iterator[Check]:
    claims = subject.capabilities
    sizes = [SIZES[dims][0] for dims in sorted(claims.spatial_dims)]
    if not claims.batch_independent:
        reason = "batch_independent is not claimed"
        yield withheld(checks.check_fm_batch_independence, Status.NOT_CLAIMED, reason)
    if not claims.keep:
        yield withheld(checks.check_fm_masked_region, Status.NOT_CLAIMED, "keep is not claimed")
    if claims.gate is None:
        yield withheld(checks.check_fm_gate_bounds, Status.NOT_CLAIMED, "gate is not claimed")
    for size in sizes:
        label = "x".join(str(n) for n in size)
        for garbage in (0.0, 1e3) if claims.keep else ():
            yield planned(
                checks.check_fm_masked_region, f"{label}-{garbage:g}", subject, size, garbage
            )
        for loudness in (1.0, 1e3) if claims.gate else ():
            yield planned(
                checks.check_fm_gate_bounds, f"{label}-{loudness:g}", subject, size, loudness
            )
    if claims.compiles == "no":
        yield withheld(check_fm_compile, Status.NOT_CLAIMED, "compiles is not claimed")
    else:
        yield planned(check_fm_compile, "", subject, extended=True)


def _unclaimed(subject: FeatureMapSubject) -> Iterator[Check]:
    claims, check = subject.capabilities, checks.check_fm_unsupported_raises
    usual = SIZES[min(claims.spatial_dims)][0]
    if not claims.keep:
        yield planned(check, "keep", subject, usual, subject.dtype, True)
    for dims in sorted(SIZES.keys() - claims.spatial_dims):
        yield planned(check, f"dims{dims}", subject, SIZES[dims][0], subject.dtype, False)
    for dtype in DTYPES:
        if dtype not in subject.dtypes:
            yield planned(check, f"dtype_{name_of(dtype)}", subject, usual, dtype, False)
