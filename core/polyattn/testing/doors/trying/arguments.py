"""Which arguments a network takes, by their names and by trying: padding, weights, positions."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from polyattn.testing.doors.probe import keywords_of
from polyattn.testing.doors.trying.trial import Trial
from polyattn.testing.subjects.networks import Role
from polyattn.testing.subjects.paddings import Meaning, Padding, PaddingForm

PADDING_NAMES = (
    "key_padding_mask",
    "src_key_padding_mask",
    "tgt_key_padding_mask",
    "padding_mask",
    "attention_mask",
    "pad_mask",
    "key_mask",
    "mask",
    "attn_mask",
    "src_mask",
    "keep",
)
WEIGHT_FLAGS = ("need_weights", "output_attentions", "return_weights", "return_attention")
MASKS = (*PADDING_NAMES, "causal_mask", "bias", "attn_bias", "rel_pos_bias")
POSITIONS = ("positions", "position_ids", "pos", "position", "input_pos", "cache_position")
STARTS = ("start_pos", "start", "offset", "past_length")


def parameters_of(function: Any) -> Mapping[str, inspect.Parameter]:
    """Its arguments by name; empty where they cannot be read."""
    return keywords_of(function) or {}


def required_arguments(function: Any) -> tuple[int, dict[str, Role]] | None:
    """How many sequences must follow the first, and what else must be given. None: unreadable."""
    parameters = keywords_of(function)
    if parameters is None:
        return None
    sources, fixed, first = 0, dict[str, Role](), True
    for name, parameter in parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) or name == "self":
            continue  # Scripted code names itself, too.
        if first:
            first = False
        elif parameter.default is not parameter.empty:
            break
        elif name in MASKS or "mask" in name:
            fixed[name] = "none"
        elif name in POSITIONS:
            fixed[name] = "positions"
        elif name in STARTS:
            fixed[name] = "zero"
        else:
            sources += 1
    return sources, fixed


def number_of(holder: object, names: Sequence[str]) -> dict[str, int]:
    """Those of these attributes that are positive numbers; reading others may raise anything."""
    found = {}
    for name in names:
        try:
            value = getattr(holder, name, None)
        except Exception:
            continue
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            found[name] = value
    return found


def find_padding(trial: Trial, name: str | None, true_means: str | None) -> Padding | None:
    """Which argument takes padding, in which form; ``name`` and ``true_means`` overrule."""
    parameters = parameters_of(trial.running.function)
    names = [name] if name else [n for n in PADDING_NAMES if n in parameters]
    for candidate in names:
        for padding in _forms(candidate, true_means):
            # Afresh: some keep the mask of their first call.
            trial.rebuilt()
            if _pads(trial, padding):
                trial.notes.append(str(padding))
                return padding
    return None


def ignored_mask(trial: Trial) -> str:
    """An argument that is named as a mask, is given one, and changes nothing; empty if none."""
    subject = trial.subject
    x, before = subject.draw(2, subject.fit(6)), subject.manner
    keep = torch.ones(x.shape[:2], dtype=torch.bool)
    keep[:, 1:] = False
    plain = trial.tried(x)
    names = [n for n in PADDING_NAMES if n in parameters_of(trial.running.function)]
    if plain is None:
        return ""
    for name in names:
        outs = []
        for padding in _forms(name, None):
            subject.manner = dataclasses.replace(before, padding=padding)
            outs.append(trial.tried(x, keep=keep))
        subject.manner = before
        answered = [out for out in outs if out is not None]
        if answered and all(torch.equal(out, plain) for out in answered):
            return name
    return ""


def _forms(name: str, true_means: str | None) -> Iterator[Padding]:
    meanings: tuple[Meaning, ...] = ("attend", "masked", "ones", "numbers", "floats")
    if true_means is not None:
        meanings = ("attend",) if true_means == "attend" else ("masked",)
    forms: tuple[PaddingForm, ...] = ("keys", "heads", "one_query", "queries", "heads_queries")
    for form in forms:
        for meaning in meanings:
            yield Padding(name, form, meaning)
    yield Padding(name, "mask", "attend")


def _pads(trial: Trial, padding: Padding) -> bool:
    """Whether a position that is closed loses its influence on others, an open one keeps it."""
    subject = trial.subject
    before = subject.manner
    subject.manner = dataclasses.replace(before, padding=padding)
    try:
        length = subject.fit(6)
        if length < 3:
            return False
        x, keep = subject.draw(2, length), torch.ones(2, length, dtype=torch.bool)
        keep[:, 1] = False
        plain = trial.tried(x, keep=keep)
        if plain is None:
            return False

        def influence(column: int) -> float:
            after = trial.tried(subject.changed(x, slice(column, column + 1)), keep=keep)
            if after is None:
                return 0.0
            return float((after - plain)[:, -1].nan_to_num().abs().max())

        return influence(1) < influence(0) / 100
    finally:
        subject.manner = before


def find_weights_flag(trial: Trial) -> str | None:
    """The keyword with which it gives its weights, where both settings are answered."""
    x = trial.subject.draw(2, trial.subject.fit(6))
    for name in WEIGHT_FLAGS:
        if name in parameters_of(trial.running.function) and all(
            trial.tried(x, **{name: on}) is not None for on in (False, True)
        ):
            return name
    return None
