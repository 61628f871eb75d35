"""``polyattn check``: what an attention does right and wrong, for a person."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from polyattn.cli.check_report import Report
from polyattn.cli.check_session import Session
from polyattn.errors import ConfigError, PolyattnError
from polyattn.testing.results import read_expected

PATIENCE = 30.0
"""Seconds that code from elsewhere is given; what it does not reach is listed as not run."""

Target = Annotated[
    str | None,
    typer.Argument(
        help="A variant, operation, preset or core/rope; with --as: file.py:thing, as it is."
    ),
]


def check(
    target: Target = None,
    every: Annotated[bool, typer.Option("--all", help="Check everything registered.")] = False,
    door: Annotated[
        str | None,
        typer.Option(
            "--as",
            metavar="sdpa|hf|module|lm",
            help="A function of (q, k, v), one of transformers, a module over (B, S, E), or a "
            "model from ids to logits.",
        ),
    ] = None,
    causal: Annotated[
        bool, typer.Option("--causal", help="It is meant to be causal (else: found out).")
    ] = False,
    mask_arg: Annotated[
        str | None, typer.Option(metavar="NAME", help="The argument that takes a mask.")
    ] = None,
    true_means: Annotated[
        str | None,
        typer.Option(metavar="attend|mask", help="What True means there (else: found out)."),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(metavar="none", help="none: it is not meant to be softmax attention."),
    ] = None,
    width: Annotated[
        int | None, typer.Option(metavar="E", help="The width of a module (else: found out).")
    ] = None,
    vocab: Annotated[
        int | None, typer.Option(metavar="V", help="The ids of a model (else: found out).")
    ] = None,
    cache_arg: Annotated[
        str | None, typer.Option(metavar="NAME", help="The argument that takes a cache.")
    ] = None,
    extended: Annotated[
        bool, typer.Option("--extended", help="Run what takes seconds, too: compilation.")
    ] = False,
    device: Annotated[
        str | None,
        typer.Option(metavar="cpu|cuda", help="Where to run it. [default: wherever it can be run]"),
    ] = None,
    expected: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Expected failures, a YAML file of {id: reason}."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print data, not text.")] = False,
) -> None:
    """Check an attention: each property passed, failed or not claimed; failures explained.

    Code that hangs or ends its process is one failed check, and the others are run. Exits 0 where
    all that is claimed holds, 1 where something fails, 2 where the question is wrong, 130 where it
    is interrupted.
    """
    flags: dict[str, object] = {
        "--mask-arg": mask_arg,
        "--true-means": true_means,
        "--reference": reference,
    }
    flags |= {"--width": width, "--vocab": vocab, "--cache-arg": cache_arg}
    given = [name for name, value in flags.items() if value is not None]
    wishes: dict[str, Any] = {"causal": causal, "mask_arg": mask_arg, "true_means": true_means}
    wishes |= {"width": width, "vocab": vocab, "cache_arg": cache_arg}
    wishes |= {"reference": reference or "softmax"}
    try:
        _consistent(target, every, door, given + (["--causal"] if causal else []))
        _valid(true_means, reference, device)
        session = Session(
            door=door,
            wishes=wishes,
            extended=extended,
            device=device,
            expected={} if expected is None else read_expected(expected),
            as_json=as_json,
            patience=PATIENCE,
        )
        code = session.all() if target is None else session.one(target)
    except PolyattnError as error:
        if as_json:
            failed = Report(target or "--all", device or "cpu", problem=str(error))
            print(json.dumps([failed.as_json()], indent=2))
        raise
    if code:
        raise typer.Exit(code)


def _valid(true_means: str | None, reference: str | None, device: str | None) -> None:
    if true_means not in (None, "attend", "mask"):
        raise ConfigError(f"--true-means {true_means}: expected attend or mask")
    if reference not in (None, "none"):
        raise ConfigError(f"--reference {reference}: expected none")
    if device not in (None, "cpu", "cuda"):
        raise ConfigError(f"--device {device}: expected cpu or cuda")


def _consistent(target: str | None, every: bool, door: str | None, flags: list[str]) -> None:
    if every == (target is not None):
        raise ConfigError("check: expected one name, file.py:thing with --as sdpa, or --all")
    if door is None and target is not None and ".py" in target:
        from polyattn.testing.doors.load import look_for

        look_for(target)
        raise ConfigError(
            f"check {target}: how is it called? Add --as sdpa for a function of (q, k, v), --as hf "
            "for one of transformers, --as module for x (B, S, E), --as lm for ids"
        )
    if every and (door is not None or flags):
        told = ", ".join(([f"--as {door}"] if door is not None else []) + flags)
        raise ConfigError(f"check --all: {told}: expected what is registered alone, or one target")
    if door is None and flags:
        belong = "belongs" if len(flags) == 1 else "belong"
        raise ConfigError(f"check: {', '.join(flags)} {belong} to code from elsewhere, with --as")
