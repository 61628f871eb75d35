"""What ``polyattn check`` says of one subject: as it goes, at the end, and as data. No torch."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from polyattn.cli.printable import printable
from polyattn.testing.results import Result, Status, cut_short, need_ids
from polyattn.testing.tools.recipes import recipe

INTERRUPTION = "interrupted"
"""The problem of what the user ended."""


@dataclasses.dataclass
class Report:
    """What is said of one subject, while it is checked and afterwards.

    silent: nothing is printed. brief: only failures and one line at the end, as one among many.
    expected: expected failures, each of which must be the id of a check. listen: told how far it
    is, as the number of checks done and of all. again: the command that runs the check of an id
    again, or nothing.
    """

    name: str
    device: str = "cpu"
    _: dataclasses.KW_ONLY
    silent: bool = False
    brief: bool = False
    expected: Mapping[str, str] = dataclasses.field(default_factory=dict)
    listen: Callable[[int, int], None] = lambda done, of: None
    again: Callable[[str], str] = lambda id: ""
    results: list[Result] = dataclasses.field(default_factory=list)
    notes: tuple[str, ...] = ()
    problem: str = ""
    verdict: str = ""
    ids: tuple[str, ...] = ()
    seconds: float = 0.0
    _started: float = dataclasses.field(default_factory=time.monotonic)
    _closed: bool = False

    @property
    def title(self) -> str:
        """Its name; the device with it where it is not the usual one."""
        return self.name if self.device == "cpu" else f"{self.name} on {self.device}"

    @property
    def good(self) -> bool:
        return not self.problem and all(result.status.good for result in self.results)

    def over(self) -> bool:
        """Whether there is nothing more to come: all is done, or nothing could be."""
        return self._closed or bool(self.problem)

    @property
    def unfinished(self) -> int:
        """How many checks were not reached before the run was ended."""
        return len(cut_short(self.results))

    def begin(self) -> None:
        """Say whose turn it is, before any of its code is run."""
        if not self.brief:
            self.say(self.title)

    def note(self, notes: Iterable[str]) -> None:
        """Say what is known before the first check."""
        self.notes = tuple(notes)
        for note in self.notes:
            self.say(f"  {note}" if note.startswith("asked for") else f"  found out: {note}")

    def plan(self, ids: tuple[str, ...]) -> None:
        """Hear of all checks. Raises: ConfigError for an expected failure that is none of them."""
        self.ids = ids
        need_ids(self.expected, ids)

    def hear(self, result: Result) -> None:
        """One result; the first failure is told as soon as it happens."""
        first = not result.status.good and self.good
        self.results.append(result)
        if first:
            self._explain(result)
        self.listen(len(self.results), len(self.ids))

    def conclude(self, verdict: str) -> None:
        """All is done: every property in a line, each further failure explained, and the sum."""
        self.verdict = verdict
        self._close()
        if verdict:
            self.say(f"{self.title}: {verdict}")

    def unusable(self, problem: str) -> None:
        """There is nothing to check, for this reason."""
        self.problem = problem
        self.say(f"{self.title}: cannot be checked: {problem}\n")

    def interrupt(self) -> None:
        """The user ends it: show what there is."""
        self.break_off(INTERRUPTION)
        self.say(f"{self.title}: interrupted")

    def break_off(self, problem: str) -> None:
        """Nothing more comes, for this reason: show what there is."""
        self.problem = problem
        if self.results and not self._closed:
            self._close()

    def say(self, text: str) -> None:
        if not self.silent:
            print(printable(text), flush=True)

    def count(self, *statuses: Status) -> int:
        return sum(result.status in statuses for result in self.results)

    def as_json(self) -> dict[str, Any]:
        """Everything, as plain data."""
        return {
            "name": self.name,
            "device": self.device,
            "good": self.good and not self.unfinished,
            "unfinished": self.unfinished,
            "notes": list(self.notes),
            "problem": self.problem,
            "verdict": self.verdict,
            "seconds": round(self.seconds, 2),
            "results": [result.as_json() for result in self.results],
        }

    def _explain(self, result: Result) -> None:
        self.say(f"\n{result.status.upper()} {result.id}")
        told = str(result.failure).partition(": ")[2] if result.failure else result.reason
        lines = told.splitlines()
        inputs = recipe(result.failure.seen.given) if result.failure else ""
        lines += [f"its inputs: {inputs}"] if inputs else []
        command = self.again(result.id)
        lines += [f"run it again: {command}"] if command else []
        self.say("\n".join(f"  {line}" for line in lines) + "\n")

    def _close(self) -> None:
        self._closed, self.seconds = True, time.monotonic() - self._started
        groups: dict[str, list[Result]] = {}
        for result in self.results:
            groups.setdefault(result.name, []).append(result)
        if not self.brief:
            for name, results in groups.items():
                if not _left_out(results):
                    self.say(_line(name, results))
            for line in _lines_left_out(filter(_left_out, groups.values())):
                self.say(line)
        self._failures([result for result in self.results if not result.status.good])
        counts = Counter(str(result.status) for result in self.results)
        told = ", ".join(f"{count} {status}" for status, count in counts.items())
        end = "" if self.brief else "\n"
        self.say(f"{self.title}: {told or 'nothing to check'} in {self.seconds:.1f} s{end}")

    def _failures(self, bad: Sequence[Result]) -> None:
        """Each property explained once; the first one was told already, and what follows from
        another failure is counted and named."""
        told = {result.id for result in bad}
        folded = [result for result in bad if result.follows in told]
        rest = [result for result in bad if result.follows not in told]
        explained = {result.name for result in bad[:1]}
        for result in rest:
            if result.name not in explained:
                self._explain(result)
            explained.add(result.name)
        seen: set[str] = set()
        for result in rest:
            if result.name in seen:
                self.say(f"also {result.status}: {result.id}: {result.reason}")
            seen.add(result.name)
        for root, count in Counter(result.follows for result in folded).items():
            names = sorted({result.name for result in folded if result.follows == root})
            verb = "follows" if count == 1 else "follow"
            self.say(f"{count} more {verb} from {root}: {', '.join(names)}")


LEFT_OUT = frozenset({Status.NOT_CLAIMED, Status.NOT_RUN})


def _left_out(results: list[Result]) -> bool:
    """Whether a property was not judged at all."""
    return all(result.status in LEFT_OUT for result in results)


def _lines_left_out(properties: Iterable[list[Result]]) -> Iterator[str]:
    """What was not judged, by the reason: ``not claimed  no decoding state is claimed (9)``."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for results in properties:
        first = results[0]
        by_reason.setdefault((str(first.status), first.reason), []).append(first.name)
    for (status, reason), names in by_reason.items():
        told = names[0] if len(names) == 1 else f"{len(names)} checks"
        yield f"{status:<12} {told}: {reason}"


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
    raise AssertionError(f"{name}: what was left out has a line of its own")
