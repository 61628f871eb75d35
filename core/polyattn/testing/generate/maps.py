"""The checks of feature maps that a subject's claims ask for."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from polyattn.testing.checks import feature_maps as checks
from polyattn.testing.checks import map_gates as gates
from polyattn.testing.checks import map_layouts as layouts
from polyattn.testing.checks import map_manners as manners
from polyattn.testing.checks import map_training as training
from polyattn.testing.checks import map_values as values
from polyattn.testing.checks.compiling import check_fm_compile
from polyattn.testing.checks.derivatives import check_fm_forward_mode
from polyattn.testing.checks.exporting import check_fm_export
from polyattn.testing.checks.refusals import DTYPES, name_of
from polyattn.testing.generate.life_cycle import copies
from polyattn.testing.planned import Check, not_claimed, planned
from polyattn.testing.subjects.feature_maps import FeatureMapSubject
from polyattn.testing.subjects.variant import FeatureMapVariant

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
            label = _text(size)
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
        label = _text(size)
        if subject.capabilities.batch_independent:
            yield planned(checks.check_fm_batch_independence, label, subject, size)
    yield from _claimed(subject)
    for group in (_gates, _values, _manners, _layouts, _training):
        yield from group(subject)
    yield from _unclaimed(subject)


def _text(size: tuple[int, ...]) -> str:
    return "x".join(str(n) for n in size)


def _usual(subject: FeatureMapSubject) -> dict[str, tuple[int, ...]]:
    """One map for each number of spatial dimensions, by its label."""
    sizes = [SIZES[dims][0] for dims in sorted(subject.capabilities.spatial_dims)]
    return {_text(size): size for size in sizes}


def _one(subject: FeatureMapSubject) -> tuple[int, ...]:
    """The map for what does not depend on the number of dimensions: an image, where it may be."""
    dims = subject.capabilities.spatial_dims
    return SIZES[2 if 2 in dims else min(dims)][0]


def _backward(subject: FeatureMapSubject) -> bool:
    support = subject.capabilities.devices.get(subject.place.name)
    return bool(support and support.backward)


def _gates(subject: FeatureMapSubject) -> Iterator[Check]:
    """What the gate listens to, and how a map may move."""
    claims = subject.capabilities
    if claims.gate is None:
        reason = "gate is not claimed"
        yield not_claimed(gates.check_fm_gate_depends_on_input, reason)
    else:
        one = _one(subject)
        for channels in (8, 2, 1):
            size = (one[0], channels, *one[2:])
            yield planned(gates.check_fm_gate_depends_on_input, _text(size), subject, size)
    if claims.symmetry is None:
        reason = "symmetry is not claimed"
        yield not_claimed(gates.check_fm_spatial_symmetry, reason)
    if claims.symmetry != "pixels":
        reason = "symmetry in the pixels is not claimed"
        yield not_claimed(gates.check_fm_size_invariance, reason)
    if not claims.pooling:
        reason = "pooling is not claimed"
        yield not_claimed(gates.check_fm_pooling_branches, reason)
    for label, size in _usual(subject).items():
        if claims.symmetry:
            yield planned(gates.check_fm_spatial_symmetry, label, subject, size)
        if claims.symmetry == "pixels":
            if claims.keep:
                told = f"{label}-keep"
                yield planned(gates.check_fm_spatial_symmetry, told, subject, size, True)
            yield planned(gates.check_fm_size_invariance, label, subject, size)
        for branch in ("avg", "max") if claims.pooling else ():
            told = f"{label}-{branch}"
            yield planned(gates.check_fm_pooling_branches, told, subject, size, branch)


def _values(subject: FeatureMapSubject) -> Iterator[Check]:
    """Narrow dtypes, their range, and any pattern of real pixels."""
    one = _one(subject)
    for dtype in sorted(subject.dtypes - {torch.float64}, key=str):
        name = name_of(dtype)
        yield planned(values.check_fm_low_precision_error, name, subject, one, dtype)
        if dtype.itemsize != 2:
            continue
        yield planned(values.check_fm_half_range, f"loud-{name}", subject, one, dtype, 80.0)
        if subject.capabilities.pooling:
            # What pools is cheap for many pixels; attention between them is not.
            many = values.MANY[len(one) - 2]
            yield planned(values.check_fm_half_range, f"many-{name}", subject, many, dtype, 1.3)
    if not subject.capabilities.keep:
        reason = "keep is not claimed"
        yield not_claimed(values.check_fm_keep_matches_reference, reason)
        return
    for label, size in _usual(subject).items():
        for case in ("holes", "nothing", "everything"):
            told = f"{label}-{case}"
            yield planned(values.check_fm_keep_matches_reference, told, subject, size, case)


def _manners(subject: FeatureMapSubject) -> Iterator[Check]:
    one = _one(subject)
    yield planned(manners.check_fm_global_state_untouched, "", subject, one)
    yield planned(manners.check_fm_eval_deterministic_and_rng_neutral, "", subject, one)
    for label, size in _usual(subject).items():
        yield planned(manners.check_fm_call_is_stateless, label, subject, size)
    if isinstance(subject, FeatureMapVariant):
        yield planned(manners.check_fm_config_roundtrip, "", subject, one)
        yield planned(manners.check_fm_backend_really_used, "", subject, one)
        yield planned(manners.check_fm_reference_stands_alone, "", subject, one)


def _layouts(subject: FeatureMapSubject) -> Iterator[Check]:
    one = _one(subject)
    for masked in (False, True) if subject.capabilities.keep else (False,):
        label = "keep" if masked else "plain"
        yield planned(layouts.check_fm_inputs_not_mutated, label, subject, one, masked)
    if not _backward(subject):
        return
    for label, size in _usual(subject).items():
        for layout in layouts.LAYOUTS:
            for of in ("x", "grad_out"):
                told = f"{label}-{of}-{layout}"
                yield planned(layouts.check_fm_memory_format, told, subject, size, layout, of)


def _training(subject: FeatureMapSubject) -> Iterator[Check]:
    one = _one(subject)
    yield planned(training.check_fm_state_dict_roundtrip, "", subject, one)
    if not _backward(subject):
        return
    for dims in sorted(subject.capabilities.spatial_dims):
        pixel = (1, 8, *(1 for _ in range(dims)))
        told = _text(pixel)
        yield planned(training.check_fm_batch_one_train, told, subject, pixel, may_refuse=True)
    for channels in (8, 2, 1):
        size = (one[0], channels, *one[2:])
        yield planned(training.check_fm_parameters, _text(size), subject, size)
    yield from _copies(subject, one)
    yield planned(training.check_fm_inference_mode_then_train, "", subject, one)
    if torch.float64 in subject.dtypes:
        tiny = (2, 3, *(2 + i for i in range(len(one) - 2)))
        for masked in (False, True) if subject.capabilities.keep else (False,):
            label = "keep" if masked else "plain"
            yield planned(training.check_fm_gradcheck, label, subject, tiny, masked)


def _copies(subject: FeatureMapSubject, size: tuple[int, ...]) -> Iterator[Check]:
    check = training.check_fm_deepcopy_pickle_after_forward
    try:
        module = subject.build(size[1], subject.dtype)
    except Exception:
        module = None  # That it cannot be built is a finding of each check.
    yield from copies(check, subject, module, size)


def _claimed(subject: FeatureMapSubject) -> Iterator[Check]:
    claims = subject.capabilities
    sizes = [SIZES[dims][0] for dims in sorted(claims.spatial_dims)]
    if not claims.batch_independent:
        reason = "batch_independent is not claimed"
        yield not_claimed(checks.check_fm_batch_independence, reason)
    if not claims.keep:
        yield not_claimed(checks.check_fm_masked_region, "keep is not claimed")
    if claims.gate is None:
        yield not_claimed(checks.check_fm_gate_bounds, "gate is not claimed")
    for size in sizes:
        label = _text(size)
        for garbage in (0.0, 1e3) if claims.keep else ():
            yield planned(
                checks.check_fm_masked_region, f"{label}-{garbage:g}", subject, size, garbage
            )
        for loudness in (1.0, 1e3) if claims.gate else ():
            yield planned(
                checks.check_fm_gate_bounds, f"{label}-{loudness:g}", subject, size, loudness
            )
    if claims.compiles == "no":
        yield not_claimed(check_fm_compile, "compiles is not claimed")
    else:
        yield planned(check_fm_compile, "", subject, extended=True)
    for dims in sorted(claims.spatial_dims) if claims.exports != "no" else ():
        yield planned(check_fm_export, f"dims{dims}", subject, dims, extended=True)
    if claims.exports == "no":
        yield not_claimed(check_fm_export, "exports is not claimed")
    if torch.float64 in subject.dtypes:
        yield planned(check_fm_forward_mode, "", subject, SIZES[min(claims.spatial_dims)][0])


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
