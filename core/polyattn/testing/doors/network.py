"""The opened door of a module or a language model: its findings, its checks, its verdict."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from polyattn.testing.checks.modules import check_module_output
from polyattn.testing.doors.causes import DoorFailure
from polyattn.testing.doors.roots import failing
from polyattn.testing.doors.trying.steadiness import Unsteady
from polyattn.testing.generate.networks import network_checks
from polyattn.testing.planned import Check, Trait, not_run
from polyattn.testing.results import CheckFailure, Result, Seen, Status, property_of
from polyattn.testing.subjects.networks import Network

LIKELY = "most likely: "
"""Begins the first cause of a failure where a few more calls show which it is."""


@dataclasses.dataclass(frozen=True)
class NetworkDoor:
    """An opened door: the network (None where it answers no plain call), findings and notes."""

    subject: Network | None
    findings: tuple[Check, ...]
    notes: tuple[str, ...]
    module: object = None
    unsteady: Unsteady | None = None
    """Its output changes from call to call in evaluation: nothing can be compared."""
    doubts: tuple[str, ...] = ()
    """What is odd, and may be meant: a verdict that praises names it."""

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

    def follows(self, check: Check) -> str:
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
            return f"not correct; {_first(results)}failed: {', '.join(bad)}{unfinished}"
        if not self.subject.mixes:
            return f"no position hears another: of attention nothing could be asked{unfinished}"
        kind = "causal" if self.subject.causal else "not causal"
        padding = self.subject.manner.padding
        mask = f"padding by {padding.name}" if padding else "takes no padding"
        asked = " that could be asked" if self.doubts else ""
        but = f"; but {'; '.join(self.doubts)}" if self.doubts else ""
        return f"it breaks no rule{asked}; {kind}; {mask}{but}{unfinished}"


def _first(results: Sequence[Result]) -> str:
    """What to mend first: the cause of the first failure that has a likely one."""
    failures = [x.failure for x in results if x.failure is not None and not x.status.good]
    causes = [failure.property.causes[0] for failure in failures if failure.property.causes]
    return next((f"fix first, {cause}; " for cause in causes if cause.startswith(LIKELY)), "")


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


def shut(what: str, notes: tuple[str, ...], given: str = "") -> NetworkDoor:
    """A plain call is not answered: that is all that can be said."""
    return NetworkDoor(None, (finding(check_module_output, "plain call", what, given),), notes)
