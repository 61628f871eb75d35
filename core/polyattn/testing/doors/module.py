"""The door of modules: something over x (B, S, E), checked as it is.

Found out by trying: the width, whether the batch or the sequence comes first, which arguments
must be given and what they are, who hears whom, which argument takes padding and what True means
there, whether another sequence can be attended to, whether it computes in float64.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from polyattn.testing.doors.network import NetworkDoor, shut
from polyattn.testing.doors.suspects import Suspecting
from polyattn.testing.doors.trying.arguments import (
    find_padding,
    find_weights_flag,
    ignored_mask,
    number_of,
    parameters_of,
    required_arguments,
)
from polyattn.testing.doors.trying.hearing import hearing, say_of_hearing
from polyattn.testing.doors.trying.lengths import find_lengths, find_longest
from polyattn.testing.doors.trying.precision import complex_parameters, settle_precision
from polyattn.testing.doors.trying.steadiness import training_is_plain, unsteadiness
from polyattn.testing.doors.trying.trial import Trial
from polyattn.testing.doors.trying.waking import settle_waking
from polyattn.testing.process.contained import TimeUp
from polyattn.testing.results import Mismatch
from polyattn.testing.subjects.networks import Function, Manner, ModuleSubject, described, picked
from polyattn.testing.tools.cases import normal
from polyattn.testing.tools.numerics import need_finite

WIDTH_NAMES = (
    "embed_dim",
    "d_model",
    "hidden_size",
    "dim",
    "embed_size",
    "emb_size",
    "emb_dim",
    "n_embd",
    "model_dim",
    "width",
    "hidden_dim",
    "in_features",
    "n_state",
)
WIDTHS = (8, 16, 32, 64, 128, 256, 512, 768, 1024)
PARTNER = 5
LONG = 24
"""The checks ask for no longer sequences."""
CONTEXTS = (("context",), ("memory",), ("encoder_hidden_states",), ("key", "value"), ("kv",))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModuleWishes:
    """What the user says in place of what trying finds out."""

    causal: bool = False
    mask_arg: str | None = None
    true_means: str | None = None
    width: int | None = None


def module_door(
    name: str,
    make: Callable[[], Function],
    wishes: ModuleWishes | None = None,
    patience: float | None = None,
) -> NetworkDoor:
    """The door to the module that ``make`` gives. What it prints meanwhile is not shown."""
    quiet = io.StringIO()
    with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
        subject = ModuleSubject(name, make, Manner(), 8)
        try:
            trial = Trial(subject, patience)
            return _opened(trial, wishes or ModuleWishes())
        except TimeUp as error:
            return shut(str(error), ())
        except Mismatch as mismatch:
            return shut(mismatch.seen.what, ())


def _opened(trial: Trial, wishes: ModuleWishes) -> NetworkDoor:
    subject = trial.subject
    assert isinstance(subject, ModuleSubject)
    if problem := complex_parameters(trial):
        return shut(problem, ())
    if not _answered(trial, wishes):
        return shut(trial.error, tuple(trial.notes))
    if subject.any_length:
        find_longest(trial, LONG)
    x = subject.draw(2, subject.fit(6))
    plain = trial.tried(x)
    if plain is None:
        return shut(f"the same call again: {trial.error}", tuple(trial.notes))
    try:
        need_finite("the output", plain)
    except Mismatch as mismatch:
        return shut(mismatch.seen.what, tuple(trial.notes), described(x))
    subject.out_width = plain.shape[-1]
    if subject.out_width != subject.width:
        trial.notes.append(f"its output has another width, {subject.out_width}")
    subject.meddles = _writes(trial, x)
    settle_precision(trial)
    unsteady = unsteadiness(trial)
    if unsteady is None:
        _who_hears_whom(trial, wishes)
    module = trial.running.function
    return Suspecting(subject, (), tuple(trial.notes), module, unsteady, tuple(trial.doubts))


def _is_lazy(function: object) -> bool:
    return isinstance(function, nn.Module) and any(map(is_lazy, function.parameters()))


def _who_hears_whom(trial: Trial, wishes: ModuleWishes) -> None:
    subject = trial.subject
    assert isinstance(subject, ModuleSubject)
    moved = hearing(trial, subject.fit(12))
    subject.causal = say_of_hearing(trial, moved)
    if wishes.causal:
        trial.notes.append("asked for: causal (--causal)")
        subject.causal = True
    padding = find_padding(trial, wishes.mask_arg, wishes.true_means)
    subject.manner = dataclasses.replace(subject.manner, padding=padding)
    _find_context(trial)
    subject.weights_flag = find_weights_flag(trial)
    subject.silenced = training_is_plain(trial)
    if padding is None and wishes.mask_arg is not None:
        trial.notes.append(f"{wishes.mask_arg} closes nothing when it is given padding")
    if padding is None and (name := ignored_mask(trial)):
        trial.doubts.append(f"its argument {name} is never used")
    if subject.any_length and moved is not None and not padding:
        _order(trial)


def _answered(trial: Trial, wishes: ModuleWishes) -> bool:
    """Find the width, the arguments and the lengths with which a plain call is answered."""
    subject = trial.subject
    assert isinstance(subject, ModuleSubject)
    lazy = _is_lazy(trial.running.function)
    manners = list(_manners(trial.running.function))
    widths = [wishes.width] if wishes.width else list(_widths(trial.running.function))
    first = ""
    for width in widths:
        for manner in manners:
            subject.width, subject.manner = width, manner
            if not find_lengths(trial):
                first = first or f"{trial.error}; given x (2, 6, {width})"
                continue
            told = "--width" if wishes.width else "found by trying, or on the module"
            trial.notes.append(f"x has the width {width} ({told})")
            if manner.partner:
                told = f"its second argument is given a sequence of {PARTNER}, always the same"
                trial.notes.append(told)
            elif manner.sources:
                trial.notes.append(f"x is given {manner.sources + 1} times, for each sequence")
            if lazy:
                _keep(trial)
            settle_waking(trial)
            _sequence_first(trial)
            return True
    tried = ", ".join(str(width) for width in widths)
    trial.error = f"{first}; widths tried: {tried}; name another with --width"
    return False


def _keep(trial: Trial) -> None:
    """Its parameters are there since the first call: from now on it is one object."""
    made = trial.running.function
    trial.subject.make = lambda: made


def _manners(function: Any) -> Iterator[Manner]:
    """Ways to call it, the least demanding first."""
    required = required_arguments(function)
    if required is None:
        yield from (Manner(sources=n) for n in (0, 1, 2))
        return
    sources, fixed = required
    if sources == 1:
        yield Manner(sources=1, partner=PARTNER, fixed=fixed)
    yield Manner(sources=sources, fixed=fixed)
    if sources and fixed:
        yield Manner(sources=sources)


def _widths(function: Any) -> Iterator[int]:
    """Widths to try: what the module says of itself, then its first layer's, then usual ones."""
    told: list[int] = []
    for holder in (function, getattr(function, "config", None), getattr(function, "args", None)):
        told += number_of(holder, WIDTH_NAMES).values()
    for part in function.modules() if isinstance(function, nn.Module) else ():
        if isinstance(part, nn.Linear):
            told.append(part.in_features)
        elif isinstance(part, nn.LayerNorm | nn.RMSNorm):
            told.append(part.normalized_shape[-1])
        elif isinstance(part, nn.MultiheadAttention):
            told.append(part.embed_dim)
    if isinstance(function, nn.Module):
        made = [x for x in function.parameters() if not is_lazy(x)]
        told += [x.shape[-1] for x in made if x.dim() > 1]
        told += [x.shape[0] for x in made if x.dim() > 1]
    yield from dict.fromkeys([x for x in [*told[:8], *WIDTHS] if x > 0])


def _sequence_first(trial: Trial) -> None:
    """Find out which of the first two dimensions is the batch."""
    subject = trial.subject
    assert isinstance(subject, ModuleSubject)
    size = subject.step if subject.step > 1 else 5
    if trial.tried(_other(subject, 3, size)) is None:
        return
    votes = 0
    for place in ((0, 0), (-1, -1), (1, 2)):
        x = _other(subject, 3, size)
        changed = x.clone()
        changed[place] += 1.0
        before, after = trial.tried(x), trial.tried(changed)
        if before is None or after is None:
            continue
        moved = (after - before).abs().amax(-1) > 1e-7
        moved[place] = False
        row, column = moved[place[0]].sum(), moved[:, place[1]].sum()
        votes += int(row > 0) - int(column > 0)
    if votes < 0:
        subject.manner = dataclasses.replace(subject.manner, batch_first=False)
        trial.notes.append("it reads x as (S, B, E), the sequence first, and is checked so")
        trial.doubts.append(
            "it reads x as (S, B, E), the sequence first: where (B, S, E) was meant, it attends "
            "over the batch, and batch_first=True or a transpose is missing"
        )


def _other(subject: ModuleSubject, batch: int, length: int) -> Tensor:
    return normal(batch, length, subject.width, seed=61).to(subject.dtype)


def _writes(trial: Trial, x: Tensor) -> bool:
    """Whether a call writes to its input."""
    given = x.clone()
    try:
        with trial.guarded(), torch.no_grad():
            trial.running.raw(given)
    except Exception:
        return False
    return not torch.equal(given, x)


def _find_context(trial: Trial) -> None:
    """Whether it attends to another sequence, and how that is given."""
    subject = trial.subject
    assert isinstance(subject, ModuleSubject)
    kept = subject.manner
    parameters = parameters_of(trial.running.function)
    ways = [kept] if kept.sources else []
    ways += [
        dataclasses.replace(kept, context=names)
        for names in CONTEXTS
        if not kept.sources and all(name in parameters for name in names)
    ]
    x = subject.draw(2, subject.fit(6))
    contexts = [subject.draw(2, subject.fit(6), seed=seed) for seed in (1, 2)]
    for manner in ways:
        subject.manner = manner
        outs = [trial.tried(x, context=context) for context in contexts]
        if outs[0] is not None and outs[1] is not None and not torch.equal(outs[0], outs[1]):
            if _as_long_as(trial, x):
                trial.notes.append("its output is as long as its second argument: that stays as x")
                break
            subject.takes_context = True
            where = ", ".join(manner.context) or f"argument {2 if manner.sources == 1 else '2, 3'}"
            trial.notes.append(f"it attends to another sequence ({where})")
            return
    subject.manner = kept


def _as_long_as(trial: Trial, x: Tensor) -> bool:
    """Whether the output is as long as the other sequence: then that is the one that attends."""
    subject = trial.subject
    context = subject.draw(len(x), subject.fit(x.shape[1] + 2), seed=3)
    if context.shape[1] == x.shape[1]:
        return False
    try:
        with trial.guarded(), torch.no_grad():
            got = subject.manner.raised(picked(trial.running.raw(x.clone(), context=context)))
    except Exception:
        return False
    return isinstance(got, Tensor) and got.shape[:2] == context.shape[:2]


def _order(trial: Trial) -> None:
    """Say whether it knows in which order the positions stand."""
    subject = trial.subject
    assert isinstance(subject, ModuleSubject)
    if subject.causal:
        return
    x = subject.draw(1, subject.fit(7))
    order = torch.arange(x.shape[1]).roll(1)
    order[0], order[1] = order[1].clone(), order[0].clone()
    straight, turned = trial.tried(x), trial.tried(x[:, order])
    if straight is None or turned is None:
        return
    same = float((straight[:, order] - turned).abs().max()) <= 1e-5 * float(straight.abs().max())
    if same:
        told = "it does not know the order of positions: permuted inputs give permuted outputs"
        trial.notes.append(told)
        return
    trial.notes.append("it knows the order of positions")
    if not _may_hold_positions(trial.running.function, subject.width):
        trial.doubts.append(
            "it knows the order of positions, though no table of positions was seen: heads split "
            "or merged without a transpose?"
        )


NO_TABLES = (nn.Linear, nn.MultiheadAttention, nn.LayerNorm, nn.RMSNorm)
"""Modules whose parameters have no size that is a length, whatever the size."""
ORDERED = (nn.Embedding, nn.RNNBase, nn.Conv1d, nn.Conv2d)
"""Modules that look positions up, or know their order."""


def _may_hold_positions(function: object, width: int) -> bool:
    """Whether it has layers that know an order, or a tensor one of whose sizes may be a length."""
    if not isinstance(function, nn.Module):
        return True
    for module in function.modules():
        if isinstance(module, ORDERED):
            return True
        if isinstance(module, NO_TABLES):
            continue
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            if any(size != 3 * width and width % max(size, 1) for size in tensor.shape):
                return True
    return False
