"""Findings that are made before the first check, and which failures follow from each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import torch

from polyattn.testing.doors.blocks import blocks_cause
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
from polyattn.testing.planned import Check, Trait, planned
from polyattn.testing.results import Property, Seen

PARTS = frozenset({"causal", "window", "padding", "segments", "dense", "bias", "alibi"})


Explains = Callable[[Check], bool]


@dataclasses.dataclass(frozen=True)
class Root:
    """A finding, and which other checks fail because of it."""

    check: Check
    explains: Explains
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


def not_loaded(label: str, property: Property, what: str) -> Check:
    """The finding that it could not be loaded, made or tried: nothing explains that."""
    found = failing("check_thing_loads", label, property, Seen(what=what))
    return dataclasses.replace(found, traits=frozenset({Trait.MANNERS, Trait.PLAIN_CALL}))


def explains_values(check: Check) -> bool:
    """A wrong formula: everything but manners."""
    return Trait.MANNERS not in check.traits


def explains_all(check: Check) -> bool:
    """Random numbers in the output."""
    return Trait.PLAIN_CALL not in check.traits


def explains_nothing(check: Check) -> bool:
    """What the other checks allow for."""
    return False


def explains_masks(check: Check) -> bool:
    """Masks that do not what they should: whatever is asked with a mask."""
    words = set(_label(check).replace("_", "-").replace("+", "-").split("-"))
    return explains_values(check) and (
        bool(words & PARTS)
        or any(word in check.name for word in ("mask", "padding", "causal", "window", "prefix"))
    )


def explains_causality(check: Check) -> bool:
    """A wrong causal flag."""
    asked = "causal" in check.id or "prefix" in check.name
    return explains_values(check) and asked


def explains(*names: str) -> Explains:
    """These checks alone."""
    return lambda check: check.name in names


def _label(check: Check) -> str:
    return check.id.partition("[")[2].rstrip("]")


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
BY_BLOCKS = Property(
    meaning="Keys that are taken block by block give what all give at once.",
    causes=("a running maximum that rises, and old sums that are not rescaled",),
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
    cause = blocks_cause(probe, flow)
    if cause is not None:
        name = "check_matches_reference"
        yield _root(probe, name, "several blocks", BY_BLOCKS, cause, explains_values)
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
    follows: Explains,
) -> Root:
    given = probe.sample().describe()
    if property in (MASKS, EMPTY_ROWS):
        given = given.replace("mask full, ", "")  # What the mask was, the cause says.
    seen = Seen(what=f"{cause.name} ({cause.seen})", given=given)
    return Root(failing(name, label, property, seen, cause), follows, cause.name)


def _epsilon(probe: Probe, flow: Flow) -> Cause | None:
    """Something small that is added to the denominator: float64 shows it."""
    sample = probe.sample(dtype=torch.float64)
    got = probe.tried(sample)
    keep = triangle(*sample.lengths) if flow == "causal" else None
    if got is None or got.dtype != torch.float64 or distance(got, softmax_of(sample, keep)) < 1e-10:
        return None
    return fitted_epsilon(got, sample, 1e-9)
