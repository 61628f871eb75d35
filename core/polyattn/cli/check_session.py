"""One run of ``polyattn check``: one name or all, on one device or each, in a worker. No torch."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from polyattn.cli.check_question import Question
from polyattn.cli.check_report import INTERRUPTION, Report
from polyattn.cli.main import INTERRUPTED, UNFINISHED
from polyattn.cli.orphans import orphans_ended
from polyattn.cli.printable import printable
from polyattn.errors import PolyattnError
from polyattn.measure.worker import WorkerFailed
from polyattn.registry import discover
from polyattn.testing.process.worker import Job, Missing, Suite
from polyattn.testing.results import Status, expected_of, need_ids

OTHER = "cuda"
"""The device that is checked as well, where there is one."""
WITHOUT_IT = "leave --device out to check on what there is, or run it where torch sees one"


@dataclasses.dataclass
class Session:
    """What was asked for, and how far it is. patience: seconds for a check; code from elsewhere has
    them for being loaded, and for all checks together, as well."""

    question: Question
    expected: Mapping[str, str]
    as_json: bool
    patience: float
    reports: list[Report] = dataclasses.field(default_factory=list)

    def run(self, target: str | None) -> int:
        """Check one name or thing, or all for None. Gives the exit code."""
        return self.all() if target is None else self.one(target)

    def one(self, target: str) -> int:
        """Check one name, or one thing through a door. Gives the exit code."""
        if self.question.door is None and "/" not in target:
            discover().find(target)
        with self._ending(), Suite() as suite:
            for report, job in self._jobs(suite, target, brief=False):
                report.begin()
                _run(suite, job, report)
            self._say_what_is_missing(suite, target)
        return self._end()

    def all(self) -> int:
        """Check everything registered, and the framework's own parts. Gives the exit code."""
        names: list[str] = []
        with self._ending(), Suite() as suite, _progress(silent=self.as_json) as show:
            names += everything(suite)
            for at, name in enumerate(names):
                for report, job in self._jobs(suite, name, brief=True):
                    report.listen = _told(show, report.title, at, len(names))
                    report.listen(0, 1)
                    _run_one_of_many(suite, job, report)
            self._say_what_is_missing(suite, "everything")
        self._show_table()
        if not self._interrupted:
            self._need_known(names)
        # Last, so that what is printed is one document: nothing may be wrong after it.
        return self._end()

    def _jobs(self, suite: Suite, target: str, *, brief: bool) -> Iterator[tuple[Report, Job]]:
        """What to do for one name: on the device that was asked for, or on each that there is."""
        expected = expected_of(target, self.expected) if brief else dict(self.expected)
        for device in (self.question.device or "cpu", OTHER):
            first = not self.reports or self.reports[-1].name != target
            if not first and (self._one_device(target) or device not in suite.devices):
                return
            report = Report(target, device, silent=self.as_json, brief=brief)
            report.again = functools.partial(self.question.again, target, device)
            report.expected = {} if brief else expected
            self.reports.append(report)
            yield report, self._job(target, device, expected)

    def _job(self, target: str, device: str, expected: Mapping[str, str]) -> Job:
        limits = {"each": self.patience, "each_extended": 10 * self.patience}
        if self.question.door is None:
            limits |= {"opening": 2 * self.patience}
        else:
            limits |= {"opening": self.patience, "total": self.patience}
        return Job(
            target=target,
            door=self.question.door,
            wishes=self.question.wished,
            # What is asked for by name is not too slow.
            extended=self.question.extended or bool(self.question.only),
            device=device,
            expected=expected,
            only=self.question.only,
            **limits,
        )

    def _one_device(self, target: str) -> bool:
        """Whether one device is meant, and no other is tried where there is one."""
        asked = self.question
        return bool(asked.device or asked.door or asked.only) or target.startswith("core/")

    def _say_what_is_missing(self, suite: Suite, what: str) -> None:
        if not (self._one_device(what) or OTHER in suite.devices):
            self.reports[-1].say(
                f"{OTHER}: there is none here; {what} was checked on the CPU alone"
            )

    def _need_known(self, names: Sequence[str]) -> None:
        """Among many, an expected failure must be an id of one of them. One that may belong to a
        name whose checks are not known, since it could not be used, is not judged."""
        known = {f"{report.name}-{id}" for report in self.reports for id in report.ids}
        known |= {id for report in self.reports for id in report.ids}
        unread = set(names) - {report.name for report in self.reports if report.ids}
        judged = {
            id: reason
            for id, reason in self.expected.items()
            if not any(expected_of(name, {id: reason}) for name in unread)
        }
        need_ids(judged, known)

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """Ctrl-C ends the worker, and what there is is shown; nothing is left running."""
        try:
            with orphans_ended():
                yield
        except KeyboardInterrupt:
            if self.reports:
                self.reports[-1].interrupt()

    @property
    def _interrupted(self) -> bool:
        return not self.reports or any(report.problem == INTERRUPTION for report in self.reports)

    def _end(self) -> int:
        if self.as_json:
            print(json.dumps([report.as_json() for report in self.reports], indent=2))
        if self._interrupted:
            return INTERRUPTED
        if not all(report.good for report in self.reports):
            return 1
        return UNFINISHED if any(report.unfinished for report in self.reports) else 0

    def _show_table(self) -> None:
        if self.as_json:
            return
        from polyattn.cli.tables import console, show

        titles = ("name", "passed", "failed", "not claimed", "not run", "seconds", "")
        print()
        show(console(), titles, [_row(report) for report in self.reports])


def everything(suite: Suite) -> list[str]:
    """Every name that ``--all`` stands for."""
    registry = discover()
    return [*registry.operations, *registry.variants, *suite.parts()]


def _row(report: Report) -> tuple[str, ...]:
    failed = report.count(Status.FAILED, Status.ERROR, Status.XPASSED)
    counts = (
        report.count(Status.PASSED, Status.XFAILED),
        failed,
        report.count(Status.NOT_CLAIMED, Status.DOES_NOT_HOLD),
        report.count(Status.NOT_RUN),
    )
    problem = printable(report.problem) or ("unfinished" if report.unfinished else "")
    return (report.title, *map(str, counts), f"{report.seconds:.1f}", problem)


def _run(suite: Suite, job: Job, report: Report) -> None:
    """Run a job. Raises: as ``Suite.run``; Missing, with the way out."""
    try:
        suite.run(job, report)
    except Missing as error:
        raise Missing(f"{error}; {WITHOUT_IT}") from None


def _run_one_of_many(suite: Suite, job: Job, report: Report) -> None:
    """What cannot be used, or where the suite fails, does not stop the others."""
    try:
        _run(suite, job, report)
    except WorkerFailed as error:
        report.unusable(f"the suite failed: {error}")
    except PolyattnError as error:
        if job.device != "cpu":
            raise
        report.unusable(str(error))


class _Show:
    """Where progress is shown, if anywhere."""

    def __init__(self, listener: Any = None) -> None:
        self._listener = listener

    def __call__(self, share: float, text: str) -> None:
        if self._listener is not None:
            from polyattn.measure.comparison import Progress

            self._listener(Progress(share, text))


def _told(show: _Show, title: str, at: int, of: int) -> Any:
    def listen(done: int, planned: int) -> None:
        show((at + done / max(1, planned)) / of, f"{title}: {done} checks")

    return listen


@contextmanager
def _progress(*, silent: bool) -> Iterator[_Show]:
    """A bar where both streams are the same terminal; else lines on standard error, now and then.

    A bar takes over the standard output as well: what is piped must not end up on the terminal.
    """
    from rich.console import Console

    from polyattn.cli.progress import follow

    if silent:
        yield _Show()
        return
    terminal = sys.stdout.isatty() and sys.stderr.isatty()
    console = Console(stderr=True, force_terminal=None if terminal else False)
    with follow(console) as listener, contextlib.suppress(BrokenPipeError):
        yield _Show(listener)
