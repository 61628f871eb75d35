"""``polyattn check``: what an attention does right and wrong, for a person."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from polyattn.cli.check_report import Report
from polyattn.cli.main import INTERRUPTED
from polyattn.errors import ConfigError, PolyattnError

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
    as_json: Annotated[bool, typer.Option("--json", help="Print data, not text.")] = False,
) -> None:
    """Check an attention: each property passed, failed or not claimed; failures explained.

    Exits 0 where all that is claimed holds, 1 where something fails, 2 where the question is
    wrong, 130 where it is interrupted.
    """
    flags: dict[str, object] = {
        "--mask-arg": mask_arg,
        "--true-means": true_means,
        "--reference": reference,
    }
    flags |= {"--width": width, "--vocab": vocab, "--cache-arg": cache_arg}
    given = [name for name, value in flags.items() if value is not None]
    _consistent(target, every, door, given + (["--causal"] if causal else []))
    import torch

    # The tensors are tiny: on a busy machine, threads spend their time waiting for each other.
    torch.set_num_threads(1)
    wishes: dict[str, Any] = {"causal": causal, "mask_arg": mask_arg, "true_means": true_means}
    wishes |= {"width": width, "vocab": vocab, "cache_arg": cache_arg}
    reports: list[Report] = []
    interrupted = False
    try:
        for name in _names(target):
            report = Report(name, silent=as_json)
            reports.append(report)
            if door is not None:
                _through_door(report, door, wishes, reference)
            else:
                _registered(report, extended, among_others=every)
    except KeyboardInterrupt:
        interrupted = True
        reports[-1].interrupt()
    if as_json:
        print(json.dumps([report.as_json() for report in reports], indent=2))
    if interrupted:
        raise typer.Exit(INTERRUPTED)
    if not all(report.good for report in reports):
        raise typer.Exit(1)


def _consistent(target: str | None, every: bool, door: str | None, flags: list[str]) -> None:
    if every == (target is not None):
        raise ConfigError("check: expected one name, file.py:thing with --as sdpa, or --all")
    if door is None and target is not None and ".py" in target:
        from polyattn.testing.door_load import look_for

        look_for(target)
        raise ConfigError(
            f"check {target}: how is it called? Add --as sdpa for a function of (q, k, v)"
        )
    if door is None and flags:
        raise ConfigError(f"check: {', '.join(flags)} belong to code from elsewhere, with --as")


def _names(target: str | None) -> Sequence[str]:
    if target is not None:
        return [target]
    from polyattn.registry import discover
    from polyattn.testing.parts import PARTS_OF_THE_FRAMEWORK

    registry = discover()
    return [*registry.operations, *registry.variants, *PARTS_OF_THE_FRAMEWORK]


def _registered(report: Report, extended: bool, *, among_others: bool) -> None:
    from polyattn.testing.parts import checks_of_part, is_part
    from polyattn.testing.runner import checks_of
    from polyattn.testing.variant import subjects_of

    if is_part(report.name):
        checks = checks_of_part(report.name)
        report.begin()
        report.run(checks, extended=extended)
        return
    try:
        subjects = subjects_of(report.name)
    except PolyattnError as error:
        if not among_others:
            raise
        report.problem = str(error)
        report.say(f"{report.name}: cannot be checked: {error}\n")
        return
    report.begin()
    report.run(checks_of(subjects), extended=extended)


def _through_door(
    report: Report, door: str, wishes: Mapping[str, Any], reference: str | None
) -> None:
    from polyattn.testing.entrances import Flags, open_any

    if wishes["true_means"] not in (None, "attend", "mask"):
        raise ConfigError(f"--true-means {wishes['true_means']}: expected attend or mask")
    if reference not in (None, "none"):
        raise ConfigError(f"--reference {reference}: expected none")
    report.begin()
    wished = Flags(**wishes, reference="none" if reference else "softmax")
    opened = open_any(report.name, wished, door=door, patience=PATIENCE)
    report.note(opened.notes)
    report.run(opened.checks(), limit=PATIENCE)
    report.say(f"{report.name}: {opened.verdict(report.results)}")
