"""``polyattn check``: what an attention does right and wrong, for a person."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyattn.cli.main import INTERRUPTED
from polyattn.errors import ConfigError, PolyattnError

if TYPE_CHECKING:
    from polyattn.testing.planned import Check
    from polyattn.testing.results import Result

PATIENCE = 30.0
"""Seconds that code from elsewhere is given; what it does not reach is listed as not run."""

Target = Annotated[
    str | None,
    typer.Argument(help="A variant, operation or preset; with --as: file.py:thing, as it is."),
]


def check(
    target: Target = None,
    every: Annotated[bool, typer.Option("--all", help="Check everything registered.")] = False,
    door: Annotated[
        str | None,
        typer.Option("--as", metavar="DOOR", help="sdpa: a function of (q, k, v)."),
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
    extended: Annotated[
        bool, typer.Option("--extended", help="Run what takes seconds, too: compilation.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print data, not text.")] = False,
) -> None:
    """Check an attention: each property passed, failed or not claimed; failures explained.

    Exits 0 where all that is claimed holds, 1 where something fails, 2 where the question is
    wrong, 130 where it is interrupted.
    """
    flags = {"--mask-arg": mask_arg, "--true-means": true_means, "--reference": reference}
    given = [name for name, value in flags.items() if value is not None]
    _consistent(target, every, door, given + (["--causal"] if causal else []))
    import torch

    # The tensors are tiny: on a busy machine, threads spend their time waiting for each other.
    torch.set_num_threads(1)
    wishes = {"causal": causal, "mask_arg": mask_arg, "true_means": true_means}
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

    registry = discover()
    return [*registry.operations, *registry.variants]


class Report:
    """What is said of one subject, while it is checked and afterwards."""

    def __init__(self, name: str, *, silent: bool) -> None:
        self.name = name
        self.results: list[Result] = []
        self.notes: tuple[str, ...] = ()
        self.problem = ""
        self._silent = silent
        self._started = time.monotonic()

    @property
    def good(self) -> bool:
        return not self.problem and all(result.status.good for result in self.results)

    def begin(self) -> None:
        """Say whose turn it is, before any of its code is run."""
        self.say(self.name)

    def note(self, notes: Iterable[str]) -> None:
        """Say what is known before the first check."""
        self.notes = tuple(notes)
        for note in self.notes:
            self.say(f"  {note}" if note.startswith("asked for") else f"  found out: {note}")

    def run(
        self, checks: Iterable[Check], limit: float | None = None, extended: bool = False
    ) -> None:
        """Run the checks; the first failure is told as soon as it happens."""
        from polyattn.testing.runner import run_checks

        run_checks(checks, on_fail="collect", callback=self._heard, limit=limit, extended=extended)
        self._close()

    def interrupt(self) -> None:
        """The user ends it: show what there is."""
        self.problem = "interrupted"
        if self.results:
            self._close()
        self.say(f"{self.name}: interrupted")

    def say(self, text: str) -> None:
        if not self._silent:
            print(text, flush=True)

    def as_json(self) -> dict[str, Any]:
        """Everything, as plain data."""
        return {
            "name": self.name,
            "good": self.good,
            "notes": list(self.notes),
            "problem": self.problem,
            "results": [result.as_json() for result in self.results],
        }

    def _heard(self, result: Result) -> None:
        first = not result.status.good and self.good
        self.results.append(result)
        if first:
            self._explain(result)
        if not self._silent and sys.stderr.isatty():
            print(f"\r{len(self.results)} checks", end="\r", file=sys.stderr, flush=True)

    def _explain(self, result: Result) -> None:
        self.say(f"\n{result.status.upper()} {result.id}")
        told = str(result.failure).partition(": ")[2] if result.failure else result.reason
        self.say("\n".join(f"  {line}" for line in told.splitlines()) + "\n")

    def _close(self) -> None:
        groups: dict[str, list[Result]] = {}
        for result in self.results:
            groups.setdefault(result.name, []).append(result)
        bad = [result for result in self.results if not result.status.good]
        for name, results in groups.items():
            self.say(_line(name, results))
        explained = {bad[0].name} if bad else set()
        for result in bad[1:]:
            if result.name not in explained:
                self._explain(result)
            explained.add(result.name)
        self._others(bad)
        counts = Counter(str(result.status) for result in self.results)
        told = ", ".join(f"{count} {status}" for status, count in counts.items())
        self.say(f"{self.name}: {told} in {time.monotonic() - self._started:.1f} s\n")

    def _others(self, bad: list[Result]) -> None:
        """Failures of a property that was explained by another of its failures."""
        seen: set[str] = set()
        for result in bad:
            if result.name in seen:
                self.say(f"also {result.status}: {result.id}: {result.reason}")
            seen.add(result.name)


def _line(name: str, results: list[Result]) -> str:
    """One property: ``passed   check_matches_reference (14)``."""
    for status in (
        "failed",
        "error",
        "unexpectedly passed",
        "does not hold",
        "passed",
        "expected failure",
    ):
        found = [result for result in results if result.status == status]
        if found and status == "passed":
            return f"{status:<12} {name} ({len(found)})"
        if found:
            return f"{status:<12} {name} ({len(found)} of {len(results)}): {found[0].reason}"
    return f"{results[0].status:<12} {name}: {results[0].reason}"


def _registered(report: Report, extended: bool, *, among_others: bool) -> None:
    from polyattn.testing.runner import checks_of
    from polyattn.testing.variant import subjects_of

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
    from polyattn.testing.doors import Wishes, open_door

    if wishes["true_means"] not in (None, "attend", "mask"):
        raise ConfigError(f"--true-means {wishes['true_means']}: expected attend or mask")
    if reference not in (None, "none"):
        raise ConfigError(f"--reference {reference}: expected none")
    report.begin()
    wished = Wishes(**wishes, reference="none" if reference else "softmax")
    opened = open_door(report.name, wished, door=door, patience=PATIENCE)
    report.note(opened.notes)
    report.run(opened.checks(), limit=PATIENCE)
    report.say(f"{report.name}: {opened.verdict(report.results)}")
