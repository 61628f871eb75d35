"""The checks of masks, causality and decoding that a subject's claims ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from polyattn.capabilities import ORDERED_PARTS, PARTS, Part
from polyattn.testing.checks import causality as causal_checks
from polyattn.testing.checks import decoding as decoding_checks
from polyattn.testing.checks import masks as mask_checks
from polyattn.testing.checks.empty_rows import check_fully_masked_rows
from polyattn.testing.checks.padding import check_padding_equals_truncation
from polyattn.testing.checks.states import MISFITS, check_state_fits, check_state_is_a_value
from polyattn.testing.generate.asking import single_parts, without_definition
from polyattn.testing.planned import Check, not_claimed, planned
from polyattn.testing.subjects.sequence import Subject
from polyattn.testing.tools.cases import LONG_ODD, RECTANGULAR, SQUARE, TWO, Shape


def masks(subject: Subject) -> Iterator[Check]:
    """Group D."""
    taken = subject.capabilities.masks
    # Of these first: NaN from an emptied row shows in most of the others as well.
    yield from _emptied(subject)
    for part in ("dense", "bias"):
        for shape in (RECTANGULAR, SQUARE):
            if part in taken and not (shape is RECTANGULAR and _square_only(subject)):
                label = f"{part}-{shape.name}"
                yield planned(mask_checks.check_mask_broadcast_shapes, label, subject, part, shape)
    if not taken & {"dense", "bias"}:
        yield _missing(mask_checks.check_mask_broadcast_shapes, "dense or bias")
    yield from _polarity(subject)
    yield from _padding(subject)
    yield from _together(subject)
    for part in ORDERED_PARTS:
        if part in taken and part != "alibi":
            yield planned(mask_checks.check_masked_logits_cannot_win, part, subject, part)


def _missing(function: Callable[..., None], what: str) -> Check:
    return not_claimed(function, f"no mask of kind {what} is claimed")


def _square_only(subject: Subject) -> bool:
    return not subject.capabilities.unequal_lengths


def _polarity(subject: Subject) -> Iterator[Check]:
    taken = subject.capabilities.masks
    check = mask_checks.check_mask_polarity_and_dtype
    if not subject.raw_masks:
        yield planned(check, "raw_tensor_raises", subject, "raw_tensor_raises")
    for case, needs in (
        ("true_attends", {"dense"}),
        ("minus_infinity_closes", {"dense", "bias"}),
        ("finite_bias_is_added", {"bias"}),
    ):
        if needs <= taken:
            yield planned(check, case, subject, case)
    if subject.raw_masks and not taken & {"dense", "bias"}:
        yield _missing(check, "dense or bias")


def _padding(subject: Subject) -> Iterator[Check]:
    claims = subject.capabilities
    check = check_padding_equals_truncation
    if "padding" not in claims.masks:
        yield _missing(check, "padding")
        return
    ordered = claims.requires & {"causal", "window"}
    sides = ["left", "right"]
    if claims.key_order_invariant and not ordered and subject.promised_window is None:
        sides.append("middle")
    for side in sides:
        for garbage in (0.0, 1.0, 1e3):
            yield planned(check, f"{side}-{garbage:g}", subject, side, garbage)
        if claims.causal == "yes" and side != "middle":
            label = f"{side}-causal"
            yield planned(check, label, subject, side, 1e3, causal=True, may_refuse=True)


TOGETHER: tuple[tuple[Part, ...], ...] = (
    ("causal", "padding"),
    ("causal", "dense"),
    ("causal", "bias"),
    ("causal", "segments"),
    ("causal", "window"),
    ("causal", "alibi"),
    ("causal", "padding", "dense"),
    ("causal", "padding", "window"),
    ("window", "padding"),
    ("window", "segments"),
    ("padding", "dense"),
    ("dense", "bias"),
    ("padding", "bias", "alibi"),
)


def _together(subject: Subject) -> Iterator[Check]:
    check = mask_checks.check_causal_with_padding
    taken = subject.capabilities.masks
    # All at once empties a row, which in code that claims nothing is another check's question.
    everything = () if subject.raw_masks else (PARTS,)
    combinations = [parts for parts in (*TOGETHER, *everything) if frozenset(parts) <= taken]
    if not subject.has_definition:
        yield without_definition(subject, check)
        return
    if not combinations:
        yield not_claimed(check, "no two masks are claimed that could be given at once")
    # Two keys are soon all closed: for code that claims nothing that is another question too.
    shapes = (SQUARE, RECTANGULAR) if subject.raw_masks else (SQUARE, RECTANGULAR, TWO)
    for parts in combinations:
        for shape in shapes:
            if shape is RECTANGULAR and _square_only(subject):
                continue
            label = f"{'+'.join(parts) if len(parts) < 7 else 'all'}-{shape.name}"
            yield planned(check, label, subject, parts, shape, may_refuse=True)


EMPTIED: dict[str, frozenset[Part]] = {
    "boolean": frozenset({"dense"}),
    "minus_infinity": frozenset({"bias"}),
    "finfo_min": frozenset({"bias"}),
    "padding": frozenset({"padding"}),
    "causal_and_padding": frozenset({"causal", "padding"}),
    "window_and_padding": frozenset({"window", "padding"}),
    "segments": frozenset({"segments"}),
    "long_band": frozenset({"dense"}),
}


def _emptied(subject: Subject) -> Iterator[Check]:
    check = check_fully_masked_rows
    taken = subject.capabilities.masks
    cases = [case for case, needs in EMPTIED.items() if needs <= taken]
    if not cases:
        yield not_claimed(check, "no mask is claimed that could leave a row without a key")
    for case in cases:
        yield planned(check, case, subject, case, may_refuse=len(EMPTIED[case]) > 1)


def causality_by_gradient(subject: Subject) -> Iterator[Check]:
    """Before the masks: where causal is ignored, a row that padding was to empty is not empty."""
    check = causal_checks.check_causality_by_gradient
    if subject.capabilities.causal == "no":
        yield _missing(check, "causal")
        return
    for shape in _lengths(subject) if subject.backward else ():
        yield planned(check, shape.name, subject, shape)
        for part in _beside_causal(subject):
            label = f"{shape.name}-{part}"
            yield planned(check, label, subject, shape, (part,), may_refuse=True)


def causality(subject: Subject) -> Iterator[Check]:
    """Group E, but for gradients."""
    claims = subject.capabilities
    perturbation, alignment, prefix = (
        causal_checks.check_causality_by_perturbation,
        causal_checks.check_causal_alignment,
        causal_checks.check_prefix_consistency,
    )
    if claims.causal == "no":
        for check in (perturbation, alignment, prefix):
            yield _missing(check, "causal")
        return
    for shape in (*_lengths(subject), LONG_ODD):
        yield planned(perturbation, shape.name, subject, shape)
    for part in _beside_causal(subject):
        label = f"square-{part}"
        yield planned(perturbation, label, subject, SQUARE, (part,), may_refuse=True)
    if not _causal_square_only(subject):
        for queries, keys in ((5, 7), (3, 8), (1, 8), (2, 70)):
            yield planned(alignment, f"{queries}of{keys}", subject, queries, keys)
    else:
        yield not_claimed(alignment, subject.why_square_only or "L != S is not claimed")
    if not subject.raw_masks:
        yield planned(alignment, "more_queries_raise", subject, 8, 5)
    for keys in (12, 37, 140):
        shape = Shape(name="", queries=keys, keys=keys)
        yield planned(prefix, f"length{keys}", subject, shape)


def _causal_square_only(subject: Subject) -> bool:
    return _square_only(subject) or bool(subject.why_square_only)


def _lengths(subject: Subject) -> tuple[Shape, ...]:
    return (SQUARE,) if _causal_square_only(subject) else (SQUARE, RECTANGULAR)


def _beside_causal(subject: Subject) -> tuple[Part, ...]:
    return tuple(part for part in single_parts(subject) if part != "causal")


def decoding(subject: Subject) -> Iterator[Check]:
    """Group F."""
    claims = subject.capabilities
    parallel = decoding_checks.check_decode_equals_parallel
    padded = decoding_checks.check_cache_left_padding
    if claims.state == "none":
        for check in (parallel, padded, check_state_is_a_value, check_state_fits):
            yield not_claimed(check, "no decoding state is claimed")
        return
    for cut in ("tokens", "chunks", "prefill", "whole"):
        yield planned(parallel, cut, subject, cut)
    if claims.grouped_heads != "no":
        for cut in ("tokens", "chunks"):
            yield planned(parallel, f"{cut}-4over2", subject, cut, kv_heads=2)
    yield planned(parallel, "long-long_chunks", subject, "long_chunks", long=True)
    yield planned(parallel, "long-prefill", subject, "prefill", long=True)
    told: tuple[Part, ...] = ("padding", "window", "segments", "alibi")
    decoded = tuple(part for part in told if part in single_parts(subject))
    for cut in ("tokens", "chunks"):
        for part in decoded:
            yield planned(parallel, f"{cut}-{part}", subject, cut, (part,), may_refuse=True)
        if len(decoded) > 1:
            yield planned(parallel, f"{cut}-all", subject, cut, decoded, may_refuse=True)
    if subject.backward:
        for cut in ("tokens", "chunks"):
            yield planned(parallel, f"{cut}-gradients", subject, cut, gradients=True)
            label = f"{cut}-gradients_of_queries"
            yield planned(parallel, label, subject, cut, gradients=True, frozen_keys=True)
    for mode in ("no_grad", "inference", *(("gradients",) if subject.backward else ())):
        yield planned(check_state_is_a_value, mode, subject, mode)
    for case in MISFITS:
        yield planned(check_state_fits, case, subject, case)
    if "padding" not in claims.masks:
        yield _missing(padded, "padding")
        return
    for cut in ("tokens", "chunks"):
        yield planned(padded, cut, subject, cut)
