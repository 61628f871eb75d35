"""From what a user asked for to a plan: names checked, numbers checked, defaults filled in.

Imports no torch: a wrong word on the command line is answered at once.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from polyattn.errors import ConfigError, Unavailable
from polyattn.measure.machine import available_bytes
from polyattn.measure.results import ModelPlan, Plan, Task, TaskPlan, TextRecord
from polyattn.measure.text import Text, default_text, read_text, split
from polyattn.registry import Registry

LENGTHS = (512, 2048, 8192)
HEADS, HEAD_DIM = 8, 64
CONTEXT = 128
NGRAMS = (1, 2, 4)
SYMBOLS = 32
"""Alphabet of the copy task; guessing gets one in so many right."""

AIM = 2.3
"""Bits per byte that the baseline is meant to reach on the default text."""

_MODEL = ModelPlan(
    layers=2,
    d_model=64,
    heads=2,
    norm="rmsnorm",
    feed_forward="gelu",
    width=256,
)
_TEXT = TaskPlan(
    context=CONTEXT,
    position="rope",
    batch=8,
    steps=400,
    learning_rate=1e-2,
    warm_up=25,
    every=50,
)
# Copying by position is what absolute positions are good at, for kernels without a softmax too.
_COPY = TaskPlan(
    context=64,
    position="sinusoidal",
    batch=32,
    steps=200,
    learning_rate=1e-2,
    warm_up=10,
    every=20,
)
_QUICK: Mapping[Task, TaskPlan] = {"text": _TEXT, "copy": _COPY}
_FULL: Mapping[Task, TaskPlan] = {
    "text": _TEXT.model_copy(update={"batch": 16, "steps": 2000, "warm_up": 100, "every": 100}),
    "copy": _COPY.model_copy(update={"steps": 600, "warm_up": 20}),
}


def make_plan(
    registry: Registry,
    text: Text,
    *,
    variants: tuple[str, ...] | None = None,
    lengths: tuple[int, ...] = LENGTHS,
    seed: int = 0,
    threads: int = 1,
    full: bool = False,
    train: bool = True,
) -> Plan:
    """The plan of a run. variants: None takes what the registry's comparison names; the baseline
    is put in front where it is missing, since every figure is compared with it.

    Raises: ConfigError and UnknownName, one line each.
    """
    names, baseline = _names(registry, variants)
    _check_numbers(lengths, seed, threads)
    _check_memory(max(lengths), available_bytes())
    _, held_out = split(text.data, CONTEXT + 1)
    return Plan(
        variants=names,
        baseline=baseline,
        lengths=tuple(sorted(lengths)),
        heads=HEADS,
        head_dim=HEAD_DIM,
        threads=threads,
        seed=seed,
        seconds=10.0 if full else 2.0,
        full=full,
        train=train,
        seeds=(seed, seed + 1) if full else (seed,),
        baseline_seeds=() if full else (seed + 1,),
        model=_MODEL,
        tasks=dict(_FULL if full else _QUICK),
        ngrams=NGRAMS,
        text=TextRecord(
            source=text.source,
            default=text.default,
            size=text.size,
            used=len(text.data),
            sha256=text.sha256,
            held_out=len(held_out),
        ),
        aim=AIM if full and text.default else None,
    )


def copy_reach(context: int) -> int:
    """How many tokens back the answer of the copy task lies."""
    return context // 2 - 1


def open_text(path: Path | None) -> Text:
    """The text of a path, or the default one. Raises: ConfigError."""
    if path is None:
        return default_text()
    return read_text(path, 2 * (CONTEXT + 1))


def _names(registry: Registry, variants: tuple[str, ...] | None) -> tuple[tuple[str, ...], str]:
    comparison = registry.comparison
    if comparison is None:
        if not registry.entries:
            raise ConfigError("nothing to compare: no plugin found; for a checkout: `make`")
        raise ConfigError(
            "nothing to compare with: no plugin names a comparison; give one in your own registry "
            "file, as `comparison: {variants: [...], baseline: ...}`"
        )
    names = comparison.variants if variants is None else variants
    if not names:
        raise ConfigError("--variants: expected names separated by commas, got none")
    for name in names:
        try:
            registry.find(name)
        except Unavailable:
            # A name that exists stays in the table, with the reason why it cannot run.
            continue
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"--variants: {twice[0]!r} is named twice; name each variant once")
    if comparison.baseline not in names:
        names = (comparison.baseline, *names)
    return names, comparison.baseline


def _check_memory(length: int, available: int | None) -> None:
    """Refuse what cannot be measured whatever the variant does: q, k, v, the output, and a gradient
    of each, in float32."""
    needed = 8 * HEADS * HEAD_DIM * length * 4
    if available is not None and needed > available:
        raise ConfigError(
            f"--lengths: {length}: its tensors take {needed / 2**30:,.1f} GiB with gradients, and "
            f"{available / 2**30:,.1f} GiB are available; expected at most "
            f"{available // (needed // length)} tokens"
        )


def _check_numbers(lengths: tuple[int, ...], seed: int, threads: int) -> None:
    if not lengths:
        raise ConfigError("--lengths: expected numbers of tokens separated by commas, got none")
    for length in lengths:
        if length < 1:
            raise ConfigError(f"--lengths: {length}: expected 1 token or more")
        if lengths.count(length) > 1:
            raise ConfigError(f"--lengths: {length} is named twice; name each length once")
    if not 0 <= seed < 2**31:
        raise ConfigError(f"--seed: {seed}: expected an integer from 0 to {2**31 - 1}")
    cores = os.cpu_count() or 1
    if not 1 <= threads <= cores:
        raise ConfigError(
            f"--threads: {threads}: expected 1 to {cores}, the processors of this machine"
        )
