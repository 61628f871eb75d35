"""Findings that are made before the first check, and which failures follow from each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import torch

from polyattn.testing.doors.causes import Cause, DoorFailure, KnownFailure
from polyattn.testing.doors.function import Calling, Flow
from polyattn.testing.doors.mask_causes import (
    bias_cause,
    empty_row_cause,
    fill_cause,
    flag_cause,
    grouped_cause,
    mask_cause,
    overflow_cause,
)
from polyattn.testing.doors.probe import Probe
from polyattn.testing.doors.reference import distance, softmax_of, triangle
from polyattn.testing.doors.signatures import fitted_epsilon
from polyattn.testing.planned import Check, planned
from polyattn.testing.results import Property, Seen

MANNERS = frozenset(
    {
        "check_thing_loads",
        "check_output_shape_dtype_device",
        "check_global_state_untouched",
        "check_eval_deterministic_and_rng_neutral",
        "check_inputs_not_mutated",
        "check_noncontiguous",
        "check_state_dict_roundtrip",
    }
)
"""What no wrong formula explains."""
PARTS = frozenset({"causal", "window", "padding", "segments", "dense", "bias", "alibi"})


@dataclasses.dataclass(frozen=True)
class Root:
    """A finding, and which other checks (by id) fail because of it."""

    check: Check
    explains: Callable[[str], bool]
    told: str
    """Its cause in one line."""


def failing(
    name: str, label: str, property: Property, seen: Seen, cause: Cause | None = None
) -> Check:
    """A finding that is made already, as a check that fails; ``cause`` where it is known."""

    def fail() -> None:
        if cause is None:
            raise DoorFailure(name, property, seen)
        raise KnownFailure(name, property, seen, cause)

    return dataclasses.replace(planned(fail), id=f"{name}[{label}]" if label else name)


def explains_values(check: str) -> bool:
    """A wrong formula: everything but manners."""
    return check.partition("[")[0] not in MANNERS


def explains_all(check: str) -> bool:
    """Random numbers in the output."""
    return check.partition("[")[0] not in ("check_thing_loads", "check_output_shape_dtype_device")


def explains_nothing(check: str) -> bool:
    """What the other checks allow for."""
    return False


def explains_masks(check: str) -> bool:
    """Masks that do not what they should: whatever is asked with a mask."""
    name, _, label = check.partition("[")
    words = set(label.rstrip("]").replace("_", "-").replace("+", "-").split("-"))
    return name not in MANNERS and (
        bool(words & PARTS)
        or any(word in name for word in ("mask", "padding", "causal", "window", "prefix"))
    )


def explains_causality(check: str) -> bool:
    """A wrong causal flag."""
    name, _, label = check.partition("[")
    return name not in MANNERS and ("causal" in label or "causal" in name or "prefix" in name)


def explains(*names: str) -> Callable[[str], bool]:
    """These checks alone."""
    return lambda check: check.partition("[")[0] in names


FLAG = Property(
    meaning="The flag that asks for causal attention gives causal softmax attention.",
    causes=("the flag is not read", "a mask that is off by one or turned round"),
)
MASKS = Property(
    meaning="A mask that is given closes what it should, before the softmax.",
    causes=("the mask inverted or turned round", "a number in place of -inf"),
    claim="--mask-arg NAME names another argument, --true-means attend|mask says what True is",
)
EMPTY_ROWS = Property(
    meaning="A row whose mask lets it see no key gives zeros, and no NaN.",
    causes=("a softmax over -inf alone", "a finite number in place of -inf"),
)
LOUD = Property(
    meaning="Logits of any size give the right weights.",
    causes=("the maximum of the row is not subtracted", "a number in place of -inf"),
)
HEADS = Property(
    meaning="Fewer key heads are repeated: query heads 0 and 1 of 4 share key head 0 of 2.",
    causes=("repeat in place of repeat_interleave",),
)
DENOMINATOR = Property(
    meaning="The weights of each row sum to one.",
    causes=("an epsilon in the denominator",),
    claim="--reference none",
)


OF_LOUDNESS = (
    "check_rows_sum_to_one",
    "check_batch_independence",
    "check_head_independence_and_order",
    "check_key_order",
    "check_masked_logits_cannot_win",
)
OF_EMPTY_ROWS = (
    "check_fully_masked_rows",
    "check_padding_equals_truncation",
    "check_causal_with_padding",
    "check_batch_independence",
    "check_no_uninitialised_output",
)


def causes_of(probe: Probe, calling: Calling, flow: Flow) -> Iterator[Root]:
    """What is wrong beside the formula itself, which is known to be right."""
    cause = _epsilon(probe, flow)
    if cause is not None:
        yield _root(probe, "check_rows_sum_to_one", "softmax", DENOMINATOR, cause, explains_values)
    yield from loud_roots(probe, flow)
    if calling.causal_flag is not None:
        cause = flag_cause(probe, calling.causal_flag)
        if cause is not None:
            name = "check_causality_by_gradient"
            yield _root(probe, name, calling.causal_flag, FLAG, cause, explains_causality)
    if calling.mask_arg is not None:
        yield from _mask_roots(probe, calling, flow)
    elif flow == "causal":
        cause = fill_cause(probe, calling, flow)
        if cause is not None:
            name = "check_masked_logits_cannot_win"
            yield _root(probe, name, "causal", LOUD, cause, explains_causality)
    cause = grouped_cause(probe)
    if cause is not None:
        name = "check_gqa_equals_repeated_kv"
        follows = explains(name, "check_many_heads_at_length", "check_grouped_heads_at_length")
        yield _root(probe, name, "4over2", HEADS, cause, follows)


def loud_roots(probe: Probe, flow: Flow, scale: float | None = None) -> Iterator[Root]:
    """What large logits break, where all else is right with this scale."""
    cause = overflow_cause(probe, flow, scale)
    if cause is not None:
        name, follows = "check_matches_reference", explains(*OF_LOUDNESS)
        yield _root(probe, name, "large logits", LOUD, cause, follows)


def _mask_roots(probe: Probe, calling: Calling, flow: Flow) -> Iterator[Root]:
    label = calling.mask_arg or ""
    cause = mask_cause(probe, calling, flow)
    if cause is not None:
        loud = "large logits" in cause.name
        name = "check_masked_logits_cannot_win" if loud else "check_mask_polarity_and_dtype"
        follows = (
            explains(name, "check_fully_masked_rows", "check_low_precision_error")
            if loud
            else explains_masks
        )
        yield _root(probe, name, label, MASKS, cause, follows)
        return
    if calling.adds_floats:
        cause = bias_cause(probe, calling, flow)
        if cause is not None:
            name = "check_mask_polarity_and_dtype"
            yield _root(probe, name, f"{label}-floats", MASKS, cause, explains_masks)
    cause = empty_row_cause(probe, calling, flow)
    if cause is not None:
        name = "check_fully_masked_rows"
        yield _root(probe, name, label, EMPTY_ROWS, cause, explains(*OF_EMPTY_ROWS))


def _root(
    probe: Probe,
    name: str,
    label: str,
    property: Property,
    cause: Cause,
    follows: Callable[[str], bool],
) -> Root:
    seen = Seen(what=f"{cause.name} ({cause.seen})", given=probe.sample().describe())
    return Root(failing(name, label, property, seen, cause), follows, cause.name)


def _epsilon(probe: Probe, flow: Flow) -> Cause | None:
    """Something small that is added to the denominator: float64 shows it."""
    sample = probe.sample(dtype=torch.float64)
    got = probe.tried(sample)
    keep = triangle(*sample.lengths) if flow == "causal" else None
    if got is None or got.dtype != torch.float64 or distance(got, softmax_of(sample, keep)) < 1e-10:
        return None
    return fitted_epsilon(got, sample, 1e-9)
