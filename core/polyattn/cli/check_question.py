"""What ``polyattn check`` is asked: its options, as typer reads them, and what goes with what."""

from __future__ import annotations

import dataclasses
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from polyattn.errors import ConfigError
from polyattn.registry import NO_PLUGINS

Target = Annotated[
    str | None,
    typer.Argument(
        help="A variant, operation, preset or core/rope; with --as: file.py:thing, as it is."
    ),
]
Every = Annotated[bool, typer.Option("--all", help="Check everything registered.")]
Door = Annotated[
    str | None,
    typer.Option(
        "--as",
        metavar="sdpa|hf|module|lm",
        help="A function of (q, k, v), one of transformers, a module over (B, S, E), or a model "
        "from ids to logits.",
    ),
]
Causal = Annotated[
    bool, typer.Option("--causal", help="It is meant to be causal (else: found out).")
]
NotCausal = Annotated[
    bool,
    typer.Option("--not-causal", help="The language model sees both ways (lm; else: causal)."),
]
Layout = Annotated[
    str | None,
    typer.Option(
        "--layout",
        metavar="bhld|blhd",
        help="The order of q, k and v: batch, heads, length, width, or heads third (else: found "
        "out).",
    ),
]
MaskArg = Annotated[
    str | None,
    typer.Option("--mask-arg", metavar="NAME", help="The argument that takes a mask."),
]
TrueMeans = Annotated[
    str | None,
    typer.Option(
        "--true-means", metavar="attend|mask", help="What True means there (else: found out)."
    ),
]
Reference = Annotated[
    str | None,
    typer.Option(
        "--reference", metavar="none", help="none: it is not meant to be softmax attention."
    ),
]
Width = Annotated[
    int | None,
    typer.Option("--width", metavar="E", help="The width of a module (else: found out)."),
]
Vocab = Annotated[
    int | None,
    typer.Option("--vocab", metavar="V", help="The ids of a model (else: found out)."),
]
CacheArg = Annotated[
    str | None,
    typer.Option("--cache-arg", metavar="NAME", help="The argument that takes a cache."),
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        "--only",
        metavar="TEXT",
        help="Run these checks alone: an id, a name, or a part of ids. Repeat it for more.",
    ),
]
Extended = Annotated[
    bool, typer.Option("--extended", help="Run what takes seconds, too: compilation.")
]
Device = Annotated[
    str | None,
    typer.Option(
        "--device",
        metavar="cpu|cuda",
        help="Where to run a name, or what --as sdpa or hf opens. [default: wherever it can]",
    ),
]
Patience = Annotated[
    float | None,
    typer.Option(
        "--patience",
        metavar="SECONDS",
        help="Seconds for one check, ten times that for an extended one; with --as, for all "
        "checks together, too. What is cut short is unfinished: exit code 3. [default: 30]",
    ),
]
Expected = Annotated[
    Path | None,
    typer.Option(
        "--expected", metavar="FILE", help="Expected failures, a YAML file of {id: reason}."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print data, not text.")]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Question:
    """What was asked for. wishes: what was said of code from elsewhere (``entrances.Flags``), by
    name; what was not said is None or False."""

    target: str | None
    every: bool
    door: str | None
    wishes: Mapping[str, Any]
    only: tuple[str, ...]
    """Ids of checks, or parts of them; none: all are run."""
    extended: bool
    device: str | None
    expected: Path | None
    patience: float | None = None
    """Seconds; None: the usual ones."""

    @property
    def wished(self) -> dict[str, Any]:
        """The wishes that were said."""
        return {name: x for name, x in self.wishes.items() if x is not None and x is not False}

    def again(self, target: str, device: str, id: str) -> str:
        """The command that runs one check of it again, alone."""
        words = [*program(), "check", target, *(["--as", self.door] if self.door else [])]
        for name, value in self.wished.items():
            words += [option(name), *([] if value is True else [str(value)])]
        words += ["--device", device] if self.device or device != "cpu" else []
        words += ["--patience", f"{self.patience:g}"] if self.patience is not None else []
        words += ["--expected", str(self.expected)] if self.expected else []
        return shlex.join([*words, "--only", id])

    def need_sense(self) -> None:
        """Raises: ConfigError for options that do not go together, or have no such value."""
        self._need_one_subject()
        self._need_a_door()
        for name, known in VALUES.items():
            value = self.device if name == "device" else self.wishes.get(name)
            if value is not None and value not in known:
                told = " or ".join(known)
                raise ConfigError(f"{option(name)} {value}: expected {told}")
        if self.patience is not None and not 0 < self.patience <= LONGEST:
            raise ConfigError(
                f"--patience {self.patience:g}: expected seconds, more than 0 and at most {LONGEST}"
            )

    def _need_one_subject(self) -> None:
        if self.every == (self.target is not None):
            raise ConfigError("check: expected one name, file.py:thing with --as sdpa, or --all")
        given = [*([f"--as {self.door}"] if self.door else []), *map(option, self.wished)]
        given += ["--only"] if self.only else []
        if self.every and given:
            told = ", ".join(given)
            raise ConfigError(
                f"check --all: {told}: expected what is registered alone, or one target"
            )
        if not all(text.strip() for text in self.only):
            raise ConfigError("--only: expected the id of a check or a part of it, got nothing")

    def _need_a_door(self) -> None:
        """Code from elsewhere comes through a door, and what is said of it belongs to one."""
        if self.door is not None:
            return
        if self.target is not None and ".py" in self.target:
            from polyattn.testing.doors.load import look_for

            try:
                look_for(self.target)
            except OSError as error:
                raise ConfigError(f"{self.target}: cannot be read: {error.strerror}") from error
            raise ConfigError(
                f"check {self.target}: how is it called? Add --as sdpa for a function of "
                "(q, k, v), --as hf for one of transformers, --as module for x (B, S, E), --as lm "
                "for ids"
            )
        if self.wished:
            belong = "belongs" if len(self.wished) == 1 else "belong"
            told = ", ".join(map(option, self.wished))
            raise ConfigError(f"check: {told} {belong} to code from elsewhere, with --as")


LONGEST = 1_000_000
"""The most seconds that can be asked for: clocks take no number whatever."""
VALUES: Mapping[str, tuple[str, ...]] = {
    "true_means": ("attend", "mask"),
    "reference": ("none",),
    "device": ("cpu", "cuda"),
}
"""The options that take one of a few words."""


def program() -> list[str]:
    """How this program was called, to be called so again."""
    as_module = Path(sys.argv[0]).name == "__main__.py"
    words = ["python", "-m", "polyattn"] if as_module else ["polyattn"]
    return [*words, *(["--no-plugins"] if os.environ.get(NO_PLUGINS) else [])]


def option(name: str) -> str:
    """The option of that name: ``mask_arg`` is said by ``--mask-arg``."""
    return f"--{name.replace('_', '-')}"
