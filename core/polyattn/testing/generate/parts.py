"""The checks of what is no variant: positions, masks, states."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from polyattn.testing.asked import need_subject
from polyattn.testing.checks import (
    distances,
    embeddings,
    mask_algebra,
    mask_conflicts,
    mask_values,
    rotations,
    state_parts,
)
from polyattn.testing.checks.refusals import name_of
from polyattn.testing.checks.states import MODES
from polyattn.testing.planned import Check, not_claimed, planned
from polyattn.testing.subjects.mask_meanings import KINDS, MaskSubject
from polyattn.testing.subjects.positions import (
    WIDTH,
    Counting,
    DistanceBias,
    Embedding,
    PositionSubject,
    Rotation,
)
from polyattn.testing.subjects.states import StateSubject

HALVES = (torch.bfloat16, torch.float16)


def position_checks(subject: PositionSubject) -> Iterator[Check]:
    """The checks of a position module, its claims given with it. Raises: ConfigError at once."""
    need_subject("position_checks", subject, Rotation, Embedding, DistanceBias, Counting)
    return _of_positions(subject)


def mask_checks(subject: MaskSubject) -> Iterator[Check]:
    """The checks of a class of masks. Raises: ConfigError at once."""
    need_subject("mask_checks", subject, MaskSubject)
    return _of_masks(subject)


def state_checks(subject: StateSubject) -> Iterator[Check]:
    """The checks of a kind of decoding state. Raises: ConfigError at once."""
    need_subject("state_checks", subject, StateSubject)
    return _of_states(subject)


def _of_positions(subject: PositionSubject) -> Iterator[Check]:
    if isinstance(subject, Rotation):
        yield from _rotation(subject)
    elif isinstance(subject, Embedding):
        yield from _embedding(subject)
    elif isinstance(subject, DistanceBias):
        yield from _distance(subject)
    else:
        yield from _counting(subject)


def _rotation(subject: Rotation) -> Iterator[Check]:
    yield planned(rotations.check_rope_position_zero, "", subject)
    if subject.pairing is None:
        reason = "pairing is not claimed"
        yield not_claimed(rotations.check_rope_pairing, reason)
    else:
        for width in (WIDTH, 4):
            yield planned(rotations.check_rope_pairing, f"width{width}", subject, width)
    for shift in rotations.SHIFTS:
        yield planned(rotations.check_rope_is_relative, f"shift{shift}", subject, shift)
    for dtype in (torch.float64, torch.float32, *HALVES):
        yield planned(rotations.check_rope_keeps_norms, name_of(dtype), subject, dtype)
    if subject.share == 1:
        reason = "all channels are turned"
        yield not_claimed(rotations.check_rope_partial, reason)
    else:
        for dtype in (torch.float64, torch.bfloat16):
            yield planned(rotations.check_rope_partial, name_of(dtype), subject, dtype)
    for case in ("bfloat16", "float16", "autocast"):
        for at in (300, 1857, 100_000):
            check = rotations.check_rope_keeps_precision
            yield planned(check, f"{case}-position{at}", subject, case, at)
    yield planned(rotations.check_rope_follows_positions, "", subject)


def _embedding(subject: Embedding) -> Iterator[Check]:
    for width in (WIDTH, 5, 1):
        yield planned(embeddings.check_position_shapes, f"width{width}", subject, width)
    if subject.waves is None:
        reason = "waves are not claimed"
        yield not_claimed(embeddings.check_position_waves, reason)
    else:
        for width in (WIDTH, 5):
            yield planned(embeddings.check_position_waves, f"width{width}", subject, width)
    yield planned(embeddings.check_position_has_one_vector, "", subject)
    for case in ("float32", "bfloat16", "float16", "autocast"):
        yield planned(embeddings.check_position_tells_neighbours_apart, case, subject, case)
    yield planned(embeddings.check_position_limit, "", subject)
    if subject.relative:
        yield planned(embeddings.check_position_is_relative, "", subject)
    else:
        reason = "relative is not claimed"
        yield not_claimed(embeddings.check_position_is_relative, reason)


def _distance(subject: DistanceBias) -> Iterator[Check]:
    if subject.recipe is None:
        reason = "recipe is not claimed"
        yield not_claimed(distances.check_alibi_slopes, reason)
    else:
        for heads in range(1, 17):
            yield planned(distances.check_alibi_slopes, f"heads{heads}", subject, heads)
    for queries, keys in ((6, 6), (3, 7), (1, 5)):
        label = f"{queries}x{keys}"
        yield planned(distances.check_alibi_decreases, label, subject, queries, keys)
    yield planned(distances.check_alibi_is_relative, "", subject)
    for dtype in HALVES:
        yield planned(distances.check_alibi_keeps_precision, name_of(dtype), subject, dtype)


TOLD = ("plain", "padding", "documents", "segments", "both")


def _counting(subject: Counting) -> Iterator[Check]:
    for kind in TOLD:
        for seed in (0,) if kind == "plain" else (0, 1, 2):
            label = f"{kind}-seed{seed}"
            yield planned(distances.check_count_positions, label, subject, kind, seed)
        for cuts in ((4,), (1, 2, 3), (0, 8), tuple(range(9))):
            label = f"{kind}-cut{'_'.join(str(cut) for cut in cuts)}"
            yield planned(distances.check_count_continues, label, subject, kind, cuts)
        yield planned(distances.check_count_is_a_value, kind, subject, kind)
    yield planned(distances.check_count_refuses_half_said_segments, "", subject)


def _of_masks(subject: MaskSubject) -> Iterator[Check]:
    for kind, draw in KINDS.items():
        for queries, keys in mask_algebra.LENGTHS:
            if queries > keys and draw(1, 1, 0).ordered:
                continue
            for seed in (0, 1):
                label = f"{kind}-{queries}x{keys}-seed{seed}"
                check = mask_algebra.check_mask_means_what_it_says
                yield planned(check, label, subject, kind, queries, keys, seed)
    for first, second in mask_algebra.JOINED:
        for seed in (0, 1):
            label = f"{first}-{second}-seed{seed}"
            joins = mask_algebra.check_mask_joins_its_kind
            yield planned(joins, label, subject, first, second, seed)
    for queries, keys in mask_algebra.LENGTHS[1:]:
        for seed in range(8):
            label = f"{queries}x{keys}-seed{seed}"
            for function in (
                mask_algebra.check_mask_conjunction,
                mask_algebra.check_mask_lowering_never_weakens,
            ):
                yield planned(function, label, subject, queries, keys, seed)
    for case in mask_conflicts.CONFLICTS:
        yield planned(mask_conflicts.check_mask_conflicts_raise, case, subject, case)
    for queries, keys in ((4, 4), (3, 7)):
        label = f"{queries}x{keys}"
        yield planned(mask_algebra.check_mask_broadcasts, label, subject, queries, keys)
        for kind in ("everything", *KINDS):
            for whole in (mask_values.check_mask_is_a_value, mask_values.check_mask_moves_whole):
                yield planned(whole, f"{kind}-{label}", subject, kind, queries, keys)


def _of_states(subject: StateSubject) -> Iterator[Check]:
    name = subject.name
    histories = {"first": (), "early": state_parts.CHUNKS, "late": state_parts.MANY}
    for mode in MODES:
        told = f"{name}-{mode}"
        yield planned(state_parts.check_state_counts_tokens, told, subject, mode)
        for when, chunks in histories.items():
            told = f"{name}-{when}-{mode}"
            check = state_parts.check_state_nbytes_counts_what_it_holds
            yield planned(check, told, subject, chunks, mode)
            forks = state_parts.check_state_forks_are_independent
            yield planned(forks, told, subject, chunks, mode)
    for when, chunks in histories.items():
        for case in state_parts.INDICES:
            told = f"{name}-{when}-{case}"
            yield planned(state_parts.check_state_reorder, told, subject, case, chunks)
        for case in state_parts.WRONG:
            told = f"{name}-{when}-{case}"
            yield planned(state_parts.check_state_refuses_index, told, subject, case, chunks)
    for case in state_parts.MISFITS:
        told = f"{name}-{case}"
        yield planned(state_parts.check_state_refuses_tokens, told, subject, case)
