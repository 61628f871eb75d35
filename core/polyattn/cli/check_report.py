"""What ``polyattn check`` says of one subject: as it goes, at the end, and as data."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyattn.testing.planned import Check
    from polyattn.testing.results import Result


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
