"""The door of language models: ids (B, S) to logits (B, S, V), checked as they are.

They are taken to be causal: that one is not cannot be told from a mask that was forgotten, and has
to be said.

Found out by trying: the size of the vocabulary, which argument takes padding, whether and how it
decodes with a cache, the greatest length, which layer embeds the ids.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from polyattn.testing.checks.language_models import embedding_of
from polyattn.testing.doors.network import NetworkDoor, shut
from polyattn.testing.doors.suspects import Suspecting
from polyattn.testing.doors.trying.arguments import (
    POSITIONS,
    find_padding,
    number_of,
    parameters_of,
    required_arguments,
)
from polyattn.testing.doors.trying.hearing import hearing, mixing
from polyattn.testing.doors.trying.lengths import find_lengths, find_longest
from polyattn.testing.doors.trying.precision import complex_parameters, settle_precision
from polyattn.testing.doors.trying.steadiness import training_is_plain, unsteadiness
from polyattn.testing.doors.trying.trial import Trial
from polyattn.testing.doors.trying.waking import settle_waking
from polyattn.testing.process.contained import TimeUp
from polyattn.testing.results import Mismatch
from polyattn.testing.subjects.caches import CACHE_NAMES, Caching
from polyattn.testing.subjects.networks import Function, Manner, ModelSubject, described
from polyattn.testing.tools.numerics import need_finite

LIMIT_NAMES = (
    "max_position_embeddings",
    "n_positions",
    "block_size",
    "max_length",
    "max_seq_len",
    "max_seq_length",
    "context_length",
    "n_ctx",
)
TARGETS = ("targets", "labels", "target", "y")
LONGEST = 256
"""Beyond this no limit is looked for, unless the model names one of at most ``NAMED``."""
NAMED = 1024


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelWishes:
    """What the user says in place of what trying finds out."""

    not_causal: bool = False
    """Masked language models, and others that hear what comes later."""
    mask_arg: str | None = None
    true_means: str | None = None
    vocab: int | None = None
    cache_arg: str | None = None


def model_door(
    name: str,
    make: Callable[[], Function],
    wishes: ModelWishes | None = None,
    patience: float | None = None,
) -> NetworkDoor:
    """The door to the model that ``make`` gives. What it prints meanwhile is not shown."""
    quiet = io.StringIO()
    with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
        subject = ModelSubject(name, make, Manner(), 2)
        try:
            return _opened(Trial(subject, patience), wishes or ModelWishes())
        except TimeUp as error:
            return shut(str(error), ())
        except Mismatch as mismatch:
            return shut(mismatch.seen.what, ())


def _opened(trial: Trial, wishes: ModelWishes) -> NetworkDoor:
    subject = trial.subject
    assert isinstance(subject, ModelSubject)
    if problem := complex_parameters(trial):
        return shut(problem, ())
    required = required_arguments(trial.running.function)
    if required is not None:
        subject.manner = Manner(sources=required[0], fixed=required[1])
    # Ids of 0 and 1 alone: every vocabulary has them.
    if not find_lengths(trial) and not _with_targets(trial):
        return shut(f"{trial.error}; given ids (2, 6)", tuple(trial.notes))
    ids = subject.draw(2, subject.fit(6))
    logits = trial.tried(ids)
    if logits is None:
        return shut(f"the same call again: {trial.error}", tuple(trial.notes))
    closed = _closed_columns(logits)
    try:
        need_finite("the output", logits[..., ~closed])
    except Mismatch as mismatch:
        return shut(mismatch.seen.what, tuple(trial.notes), described(ids))
    subject.out_width = logits.shape[-1]
    _vocabulary(trial, wishes, closed)
    if subject.any_length:
        _find_limit(trial)
    # Only now: that one is open in long sequences is a fault, and no limit of their length.
    _leave_out(trial, closed)
    settle_waking(trial)
    settle_precision(trial)
    unsteady = unsteadiness(trial)
    if unsteady is None:
        _find_the_rest(trial, wishes)
    module = trial.running.function
    return Suspecting(subject, (), tuple(trial.notes), module, unsteady, tuple(trial.doubts))


def _closed_columns(logits: Tensor) -> Tensor:
    """Which logits are of no ids: a vocabulary may be rounded up, with -inf for the rest."""
    closed = (logits == -torch.inf).flatten(0, -2).all(0)
    return closed & ~closed.all()


def _leave_out(trial: Trial, closed: Tensor) -> None:
    subject = trial.subject
    subject.closed = tuple(int(column) for column in closed.nonzero().flatten())
    subject.out_width = len(closed) - len(subject.closed)
    if subject.closed:
        told = f"{len(subject.closed)} of {len(closed)} logits are -inf: they are left out"
        trial.notes.append(told)


def _with_targets(trial: Trial) -> bool:
    """Some give the logits of the last id alone, unless they are given targets, too."""
    subject, error = trial.subject, trial.error
    if "(2, 1," not in error:
        return False
    kept = subject.manner
    for name in TARGETS:
        if name in parameters_of(trial.running.function):
            subject.manner = dataclasses.replace(kept, fixed={**kept.fixed, name: "x"})
            if find_lengths(trial):
                trial.notes.append(f"it is given {name}, without which it answers for the last id")
                return True
    subject.manner = kept
    trial.error = f"it gives the logits of the last id alone ({error}): expected those of every id"
    return False


def _vocabulary(trial: Trial, wishes: ModelWishes, closed: Tensor) -> None:
    """As many ids as there are logits, or fewer where the first embedding holds fewer."""
    subject, function = trial.subject, trial.running.function
    assert isinstance(subject, ModelSubject)
    sizes = [int((~closed).nonzero().max()) + 1]
    if isinstance(function, nn.Module):
        embedding = _embedding(trial)
        sizes += [embedding.num_embeddings] if embedding is not None else []
        subject.embeds = embedding is not None
    subject.vocab = wishes.vocab or min(sizes)
    told = "--vocab" if wishes.vocab else "its logits and its embedding"
    trial.notes.append(f"the vocabulary has {subject.vocab} ids ({told})")


def _embedding(trial: Trial) -> nn.Embedding | None:
    try:
        with trial.guarded():
            ids = trial.subject.draw(2, trial.subject.fit(6))
            return embedding_of(trial.running.module, ids)
    except Exception:
        return None


def _find_the_rest(trial: Trial, wishes: ModelWishes) -> None:
    subject = trial.subject
    assert isinstance(subject, ModelSubject)
    moved = hearing(trial, subject.fit(12))
    subject.causal = not wishes.not_causal
    later = moved is not None and mixing(trial, moved) and bool(moved.triu(1).any())
    if wishes.not_causal:
        trial.notes.append("asked for: not causal (--not-causal)")
        if not later:
            trial.notes.append("though no logit hears a later id")
    elif later:
        trial.notes.append(
            "some logits hear later ids: it is no causal model as it stands; where it is not "
            "meant to be one: --not-causal"
        )
    padding = find_padding(trial, wishes.mask_arg, wishes.true_means)
    positions = next((n for n in POSITIONS if n in parameters_of(trial.running.function)), None)
    if padding is not None and positions is not None:
        trial.notes.append(f"with padding, {positions} counts the real ids")
    subject.manner = dataclasses.replace(
        subject.manner, padding=padding, positions=positions if padding else None
    )
    subject.silenced = training_is_plain(trial)
    if subject.causal:
        _find_cache(trial, wishes)


def _find_limit(trial: Trial) -> None:
    """The greatest length, where it names one or refuses one."""
    subject, function = trial.subject, trial.running.function
    assert isinstance(subject, ModelSubject)
    for holder in (function, getattr(function, "config", None)):
        for name, limit in number_of(holder, LIMIT_NAMES).items():
            if not 1 < limit <= NAMED:
                continue
            if trial.tried(subject.draw(1, limit)) is not None:
                subject.limit = subject.longest = limit
                trial.notes.append(f"it takes up to {limit} ids ({name})")
                return
            trial.notes.append(f"{name} is {limit}, but that many are refused: {trial.error}")
    find_longest(trial, LONGEST)
    subject.limit = subject.longest


def _find_cache(trial: Trial, wishes: ModelWishes) -> None:
    """Whether and how it decodes with a cache."""
    subject = trial.subject
    assert isinstance(subject, ModelSubject)
    ids = subject.draw(2, 6)
    for caching in _ways(trial.running.function, wishes):
        try:
            with trial.guarded():
                _, cache = caching.decode(trial.running, ids[:, :4])
                caching.decode(trial.running, ids[:, 4:], cache)
        except Mismatch as mismatch:
            error = mismatch.seen.what
            if wishes.cache_arg:
                trial.notes.append(f"{wishes.cache_arg} takes no cache: {error}")
            continue
        subject.caching = caching
        trial.notes.append(str(caching))
        return


def _ways(function: Any, wishes: ModelWishes) -> Iterator[Caching]:
    parameters = parameters_of(function)
    names = [wishes.cache_arg] if wishes.cache_arg else [n for n in CACHE_NAMES if n in parameters]
    flag = "use_cache" if "use_cache" in parameters else None
    for name in names:
        yield Caching("argument", name, flag)
    if hasattr(function, "new_state") and hasattr(function, "extend"):
        yield Caching("extend")
