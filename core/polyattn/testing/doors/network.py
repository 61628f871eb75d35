"""What the doors of modules and of language models share: trying things out, and what comes of it.

``Trial`` makes calls that may fail, and finds out by them which is the batch, who hears whom,
which argument takes padding, which dtype it computes in.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from polyattn.testing.doors.causes import DoorFailure
from polyattn.testing.doors.probe import keywords_of
from polyattn.testing.doors.roots import failing
from polyattn.testing.generate.networks import network_checks
from polyattn.testing.planned import Check, Trait, not_run
from polyattn.testing.process.contained import contained, limited, words_of
from polyattn.testing.process.settings import settings_restored
from polyattn.testing.results import (
    CheckFailure,
    Mismatch,
    Property,
    Result,
    Seen,
    Status,
    property_of,
)
from polyattn.testing.subjects.networks import Meaning, Network, Padding, PaddingForm, Role

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
Unsteady = Literal["its output is random", "its output changes from call to call"]
LARGE = 20_000_000
"""Parameters beyond which copies in float64 take too long."""
LENGTHS = (6, 8, 16, 32, 64, 128)


@dataclasses.dataclass(frozen=True)
class NetworkDoor:
    """An opened door: the network (None where it answers no plain call), findings and notes."""

    subject: Network | None
    findings: tuple[Check, ...]
    notes: tuple[str, ...]
    module: object = None
    unsteady: Unsteady | None = None
    """Its output changes from call to call in evaluation: nothing can be compared."""

    def checks(self) -> Iterator[Check]:
        """The findings, then the checks."""
        yield from self.findings
        if self.subject is None:
            return
        found = {check.name for check in self.findings}
        for check in map(in_words_of_a_door, network_checks(self.subject, self.module)):
            if self.unsteady and not _worth_asking(check, self.unsteady):
                check = not_run(check, f"{self.unsteady}: see check_module_eval_deterministic")
            if check.name not in found or Trait.PLAIN_CALL in check.traits:
                yield check

    def follows(self, check: str) -> str:
        """The id of the finding from which a failure of this check follows; none does here."""
        return ""

    def verdict(self, results: Sequence[Result]) -> str:
        """Right or not, and what fails."""
        bad = list(dict.fromkeys(result.name for result in results if not result.status.good))
        if self.subject is None:
            return f"not correct; {_reason(results)}; nothing else could be checked"
        late = sum(
            result.status is Status.NOT_RUN and result.reason.endswith("seconds were over")
            for result in results
        )
        unfinished = f"; {late} checks were not run" if late else ""
        if bad:
            return f"not correct; failed: {', '.join(bad)}{unfinished}"
        kind = "causal" if self.subject.causal else "not causal"
        padding = self.subject.manner.padding
        mask = f"padding by {padding.name}" if padding else "takes no padding"
        return f"it breaks no rule; {kind}; {mask}{unfinished}"


def _worth_asking(check: Check, unsteady: Unsteady) -> bool:
    """Whether a check says something of code that answers otherwise each time."""
    remembers = unsteady == "its output changes from call to call"
    telling = {Trait.COMPARES_NOTHING, *((Trait.FINDS_MEMORY,) if remembers else ())}
    return not telling.isdisjoint(check.traits)


def _reason(results: Sequence[Result]) -> str:
    return next((result.reason for result in results if not result.status.good), "no answer")


def in_words_of_a_door(check: Check) -> Check:
    """The check, its failures without the words of claims, which nobody here has made."""

    def run() -> None:
        try:
            check.run()
        except CheckFailure as failure:
            raise DoorFailure(failure.check, failure.property, failure.seen) from failure.__cause__

    return dataclasses.replace(check, run=run)


def finding(check: Callable[..., None], label: str, what: str, given: str = "") -> Check:
    """A check that has failed already."""
    return failing(check.__name__, label, property_of(check), Seen(what=what, given=given))


def found_already(name: str, label: str, property: Property, what: str) -> Check:
    """A property of this door alone that has failed already."""
    return failing(name, label, property, Seen(what=what))


class Trial:
    """Calls that may fail, each with the settings put back and so long and no longer."""

    def __init__(self, subject: Network, patience: float | None) -> None:
        self.subject = subject
        self.patience = patience
        self.notes: list[str] = []
        self.error = ""
        """Why the last call gave nothing."""
        with self.guarded():
            self.running = subject.build()

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Around all code of strangers. Raises: TimeUp."""
        with settings_restored(), limited(self.patience), contained():
            yield

    def tried(self, x: Tensor, **keywords: Any) -> Tensor | None:
        """The output, or None."""
        try:
            with self.guarded(), torch.no_grad():
                return self.running(x.clone(), **keywords)
        except (Mismatch, ImportError) as error:
            text = words_of(error).splitlines()
            self.error = text[0] if text else type(error).__name__
            return None

    def seeded(self, x: Tensor, seed: int) -> Tensor | None:
        """The output with the global random state set to this seed, or None."""
        try:
            with self.guarded(), torch.no_grad():
                torch.manual_seed(seed)
                return self.running(x.clone())
        except (Mismatch, ImportError):
            return None

    def rebuilt(self) -> None:
        """Build it anew, after what is known of it has changed."""
        with self.guarded():
            self.running = self.subject.build()


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


def settle_precision(trial: Trial) -> None:
    """Check in float64 where it computes in that, else in float32; says which."""
    subject = trial.subject
    if _size(trial.running.function) > LARGE:
        trial.notes.append("it is large: checked in float32")
        return
    for dtype in (torch.float64, torch.float32):
        subject.dtype = dtype
        trial.rebuilt()
        out = trial.tried(subject.draw(2, subject.fit(6)))
        if out is None:
            error = trial.error
        elif out.dtype != dtype:
            error = f"its output is {str(out.dtype).removeprefix('torch.')}"
        elif dtype == torch.float64 and not _smooth(trial):
            error = "it computes in a narrower type"
        else:
            subject.wide = dtype == torch.float64
            return
        if dtype == torch.float64:
            trial.notes.append(f"float64 is not taken ({error}): checked in float32")
    subject.dtype = torch.float32
    trial.rebuilt()


def _size(function: Any) -> int:
    parameters = function.parameters() if isinstance(function, nn.Module) else ()
    return sum(parameter.numel() for parameter in parameters)


def _smooth(trial: Trial) -> bool:
    """Whether a tiny step of everything that is real moves the output as little: no rounding."""
    subject = trial.subject
    function, x = trial.running.function, subject.draw(2, subject.fit(6))
    outs = []
    for factor in (1 - 1e-9, 1.0, 1 + 1e-9):
        try:
            moved = copy.deepcopy(function)
        except Exception:
            return False
        if isinstance(moved, nn.Module):
            with torch.no_grad():
                for parameter in moved.parameters():
                    parameter.mul_(factor)
        try:
            with trial.guarded(), torch.no_grad():
                outs.append(
                    trial.running.of(moved)(x * factor if x.is_floating_point() else x.clone())
                )
        except Mismatch:
            return False
    bend = (outs[0] + outs[2] - 2 * outs[1]).abs().max()
    return float(bend) < 1e-11 * max(1.0, float(outs[1].abs().max()))


def hearing(trial: Trial, length: int) -> Tensor | None:
    """Which output moves when a position is changed: (length, length) bool, [output, position]."""
    subject = trial.subject
    x = subject.draw(1, length)
    before = trial.tried(x)
    if before is None or not bool(before.isfinite().all()):
        return None
    columns = []
    for j in range(length):
        after = trial.tried(subject.changed(x, slice(j, j + 1)))
        if after is None:
            return None
        moved = (after - before).abs().amax(-1)[0]
        columns.append(moved > 1e-6 * max(1.0, float(before.abs().max())))
    return torch.stack(columns, 1)


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


def unsteadiness(trial: Trial) -> Unsteady | None:
    """Whether two calls differ: at random where the same seed brings the same, else from memory."""
    x = trial.subject.draw(2, trial.subject.fit(6))
    first, again, other = (trial.seeded(x, seed) for seed in (0, 0, 1))
    if first is None or again is None or other is None:
        return None
    if not torch.equal(first, again):
        return "its output changes from call to call"
    return None if torch.equal(first, other) else "its output is random"


def training_is_plain(trial: Trial) -> bool:
    """Whether, dropout set to 0, nothing random and no normalisation by the batch is left."""
    from polyattn.testing.checks.module_life import silence

    function = trial.running.function
    if not isinstance(function, nn.Module):
        return False
    if any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in function.modules()):
        return False
    try:
        quiet = copy.deepcopy(function)
    except Exception:
        return False
    silence(quiet)
    quiet.train()
    kept, trial.running = trial.running, trial.running.of(quiet)
    try:
        return unsteadiness(trial) is None
    finally:
        trial.running = kept


def find_lengths(trial: Trial) -> bool:
    """Which lengths it takes; False where it takes none that is tried."""
    subject = trial.subject
    errors = []
    for length in LENGTHS:
        subject.step, subject.any_length = length, False
        if trial.tried(subject.draw(2, length)) is None:
            errors.append(trial.error)
            continue
        if length == LENGTHS[0] and trial.tried(subject.draw(2, length + 1)) is not None:
            subject.step, subject.any_length = 1, True
        elif trial.tried(subject.draw(2, 2 * length)) is not None:
            subject.any_length = True
            trial.notes.append(f"checked at lengths that are multiples of {length}")
        else:
            trial.notes.append(f"it takes a length of {length} alone: checked there")
        return True
    subject.step, subject.any_length = 1, True
    trial.error = errors[0]
    return False


def find_longest(trial: Trial, most: int) -> None:
    """The greatest length that it takes, where it refuses one of up to ``most``."""
    subject = trial.subject
    good, bad, error = subject.fit(12), 0, ""
    if trial.tried(subject.draw(1, good)) is None:
        good, bad, error = subject.fit(6), good, trial.error
    while good < most and not bad:
        if trial.tried(subject.draw(1, 2 * good)) is None:
            bad, error = 2 * good, trial.error
        else:
            good *= 2
    while bad and bad - good > 1:
        middle = (good + bad) // 2
        if middle % subject.step or trial.tried(subject.draw(1, middle)) is None:
            bad = middle
        else:
            good = middle
    if bad:
        subject.longest = good
        trial.notes.append(f"it takes lengths up to {good} ({error})")


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


def say_of_hearing(trial: Trial, moved: Tensor | None) -> bool:
    """Say who hears whom; whether it is to be taken for causal."""
    if moved is None:
        return False
    length = len(moved)
    above = int(moved.triu(1).sum())
    below = int(moved.tril(-1).sum())
    if not above and not below:
        trial.notes.append("no position hears another")
        return False
    if not above:
        trial.notes.append("no output hears a later position: causal")
        return True
    if 2 * above <= below:
        trial.notes.append(
            f"{above} of {length * (length - 1) // 2} pairs hear what comes later: taken to be "
            f"meant causal"
        )
        return True
    trial.notes.append("outputs hear later positions: not causal")
    return False
