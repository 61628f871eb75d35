"""All doors by name: ``polyattn check file.py:thing --as sdpa | hf | module | lm``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, Protocol

from polyattn.errors import ConfigError, suggestion
from polyattn.testing.doors.hf import hf_door
from polyattn.testing.doors.layout import ORDERS, Order
from polyattn.testing.doors.lm import ModelWishes, model_door
from polyattn.testing.doors.load import load_thing
from polyattn.testing.doors.module import ModuleWishes, module_door
from polyattn.testing.doors.roots import not_loaded
from polyattn.testing.doors.sdpa import LOADS, MAKES, Wishes, open_door
from polyattn.testing.doors.verdict import without_an_answer
from polyattn.testing.planned import Check
from polyattn.testing.process.contained import TimeUp, contained, first_line, words_of
from polyattn.testing.results import Property, Result
from polyattn.testing.subjects.networks import Function


class Opened(Protocol):
    """An opened door."""

    @property
    def subject(self) -> object:
        """What is checked; None where it answers no plain call."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What was found out about it, for the reader."""

    @property
    def findings(self) -> tuple[Check, ...]:
        """What was found to be wrong before any check."""

    def checks(self) -> Iterator[Check]:
        """The findings, then the checks."""

    def follows(self, check: Check) -> str:
        """The id of the finding from which a failure of this check follows, or nothing."""

    def verdict(self, results: Sequence[Result]) -> str:
        """What it is, in one line."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags:
    """What the user says in place of what trying finds out; each door knows some of them."""

    causal: bool = False
    not_causal: bool = False
    mask_arg: str | None = None
    true_means: Literal["attend", "mask"] | None = None
    reference: Literal["softmax", "none"] = "softmax"
    layout: Order | None = None
    width: int | None = None
    vocab: int | None = None
    cache_arg: str | None = None


FLAGS_OF: Mapping[str, frozenset[str]] = {
    "sdpa": frozenset({"causal", "mask_arg", "true_means", "reference", "layout"}),
    "hf": frozenset({"causal", "true_means", "reference"}),
    "module": frozenset({"causal", "mask_arg", "true_means", "width"}),
    "lm": frozenset({"not_causal", "mask_arg", "true_means", "vocab", "cache_arg"}),
}
"""Each door, and the flags that it knows."""
FOR: Mapping[str, str] = {
    "sdpa": "a function of (q, k, v)",
    "hf": "an attention function of transformers",
    "module": "a module over x (B, S, E)",
    "lm": "a causal model from ids to logits (another: --not-causal)",
}


CAN_BE_TRIED = Property(
    meaning="It can be called, and asked for its arguments, attributes and parameters.",
    causes=(
        "an attribute, a signature or parameters() that raises when it is read",
        "an output that is no ordinary tensor",
    ),
)


def open_any(
    target: str,
    flags: Flags | None = None,
    *,
    door: str = "sdpa",
    patience: float | None = None,
) -> Opened:
    """Load ``file.py:thing`` or ``package.module:thing``, and open the door of that name to it.

    patience: seconds that importing it and each call is given; longer is a finding.

    Raises: ConfigError for an unknown door, a flag that it does not know, or a target, a file or
    a name that does not exist.
    """
    flags = flags or Flags()
    _known(door, flags)
    try:
        with contained():
            return _loaded_and_opened(target, flags, door, patience)
    except ConfigError:
        raise
    except (Exception, TimeUp) as error:
        return Shut((_fell(error),))


def listed(opened: Opened) -> list[Check]:
    """The checks of an opened door; that they cannot be listed to the end is a finding, too."""
    found: list[Check] = []
    try:
        with contained():
            for check in opened.checks():
                found.append(check)
    except Exception as error:
        found.append(_fell(error))
    return found


def _fell(error: BaseException) -> Check:
    """The finding of what strangers' code raised where nothing was expected to be raised."""
    late = isinstance(error, TimeUp)
    told = words_of(error) if late else f"it raised {first_line(error)}, while being tried"
    return not_loaded("trying", CAN_BE_TRIED, told)


def _loaded_and_opened(target: str, flags: Flags, door: str, patience: float | None) -> Opened:
    if door == "sdpa":
        return open_door(target, _wishes(flags), patience=patience)
    loaded = load_thing(target, patience)
    before: list[Check] = []
    if loaded.problem:
        property = LOADS if loaded.stage == "loading" else _makes(door)
        before.append(not_loaded("", property, loaded.problem))
    if loaded.make is None:
        return Shut(tuple(before))
    opened = _opened(door, loaded.name, loaded.make, flags, patience)
    return Preceded(opened, tuple(before)) if before else opened


def _makes(door: str) -> Property:
    return dataclasses.replace(MAKES, meaning=f"{MAKES.meaning} This door takes {FOR[door]}.")


def _known(door: str, flags: Flags) -> None:
    if door not in FLAGS_OF:
        told = ", ".join(f"{name} ({what})" for name, what in FOR.items())
        hint = suggestion(door, FLAGS_OF)
        raise ConfigError(f"--as {door}: expected one of {told}{hint}")
    for field in dataclasses.fields(flags):
        given = getattr(flags, field.name) != field.default
        if given and field.name not in FLAGS_OF[door]:
            name = field.name.replace("_", "-")
            doors = " or ".join(f"--as {x}" for x, known in FLAGS_OF.items() if field.name in known)
            raise ConfigError(f"--{name} belongs to {doors}, not to --as {door}")
    if flags.layout is not None and flags.layout not in ORDERS:
        raise ConfigError(f"--layout {flags.layout}: expected {' or '.join(ORDERS)}")
    for name in ("width", "vocab"):
        value = getattr(flags, name)
        if value is not None and value < 1:
            raise ConfigError(f"--{name} {value}: expected a positive number")


def _opened(
    door: str, name: str, make: Callable[[], Function], flags: Flags, patience: float | None
) -> Opened:
    if door == "hf":
        return hf_door(name, make, _wishes(flags), patience)
    if door == "module":
        module = ModuleWishes(
            causal=flags.causal,
            mask_arg=flags.mask_arg,
            true_means=flags.true_means,
            width=flags.width,
        )
        return module_door(name, make, module, patience)
    model = ModelWishes(
        not_causal=flags.not_causal,
        mask_arg=flags.mask_arg,
        true_means=flags.true_means,
        vocab=flags.vocab,
        cache_arg=flags.cache_arg,
    )
    return model_door(name, make, model, patience)


def _wishes(flags: Flags) -> Wishes:
    return Wishes(
        causal=flags.causal,
        mask_arg=flags.mask_arg,
        true_means=flags.true_means,
        reference=flags.reference,
        layout=flags.layout,
    )


@dataclasses.dataclass(frozen=True)
class Shut:
    """The thing could not be loaded or made: that is all that can be said."""

    findings: tuple[Check, ...]
    subject: object = None
    notes: tuple[str, ...] = ()

    def checks(self) -> Iterator[Check]:
        yield from self.findings

    def follows(self, check: Check) -> str:
        return ""

    def verdict(self, results: Sequence[Result]) -> str:
        reason = next((x.reason for x in results if not x.status.good), "it gives no answer")
        return without_an_answer(reason)


@dataclasses.dataclass(frozen=True)
class Preceded:
    """A door before which something was found already, while the thing was loaded."""

    opened: Opened
    before: tuple[Check, ...]

    @property
    def subject(self) -> object:
        return self.opened.subject

    @property
    def notes(self) -> tuple[str, ...]:
        return self.opened.notes

    @property
    def findings(self) -> tuple[Check, ...]:
        return (*self.before, *self.opened.findings)

    def checks(self) -> Iterator[Check]:
        yield from self.before
        yield from self.opened.checks()

    def follows(self, check: Check) -> str:
        return self.opened.follows(check)

    def verdict(self, results: Sequence[Result]) -> str:
        return self.opened.verdict(results)
