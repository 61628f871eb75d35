"""The suite in a process of its own, which is ended and started again where a check ends it.

Code that hangs in compiled code, calls ``os._exit`` or takes all the memory ends its worker and no
more: that check has failed, and the others are run by the next worker. Checks are closures, so
what is sent is a job, small and plain, from which the worker plans the checks anew (see ``jobs``).
No torch: the parent stays small and quick.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, Self

from polyattn.errors import ConfigError, Unavailable
from polyattn.measure.worker import Event, Worker, WorkerFailed
from polyattn.testing.results import (
    ANSWERS_IN_TIME,
    CANNOT_BE_LOADED_AGAIN,
    SURVIVES,
    TIME_IS_OVER,
    TOO_MANY_ENDS,
    CheckFailure,
    Property,
    Result,
    Seen,
    Status,
    as_expected,
    unfinished,
)

COMMAND = (sys.executable, "-P", "-m", "polyattn.testing.process.jobs")
STARTING = 120.0
"""Seconds for a worker to import torch."""
GRACE = 3.0
"""Seconds that a worker is given beyond a limit, to say by itself that it is over."""
OPENING_GRACE = 10.0
"""The same for loading and building, which is done in several steps, each within the limit."""
CARRIED = ("sdpa", "hf")
"""The doors whose calls are carried to another device."""
MOST_ENDS = 3
"""So many checks may hang or end the process; then the rest is not run."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """What to check, as plain data: a registered name, or a target and the door to it."""

    target: str
    door: str | None = None
    wishes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """``entrances.Flags``, as a mapping."""
    extended: bool = False
    device: str = "cpu"
    expected: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Expected failures by the ids of its checks; ids of no check are not looked for here."""
    only: Sequence[str] = ()
    """Ids of checks, names or parts of ids (see ``only.meant``): the others are listed and not run.
    None: all are run."""
    opening: float = 60.0
    """Seconds to load, build and plan."""
    each: float = 30.0
    """Seconds for one check, and for an extended one:"""
    each_extended: float = 300.0
    total: float | None = None
    """Seconds after which no further check is started; loading does not count."""

    def __post_init__(self) -> None:
        """Raises: ConfigError for a door that does not take what it opens to another device."""
        if self.door is not None and self.device != "cpu" and self.door not in CARRIED:
            doors = " and ".join(f"--as {door}" for door in CARRIED)
            raise ConfigError(
                f"--device {self.device} belongs to {doors} and to names: with --as {self.door} it "
                "is checked on the CPU alone; leave --device out"
            )


class Listener(Protocol):
    """Who is told how a job goes on."""

    def note(self, notes: tuple[str, ...]) -> None:
        """What was found out before the first check."""

    def plan(self, ids: tuple[str, ...]) -> None:
        """The ids of all checks, before the first; raises ConfigError where they will not do."""

    def hear(self, result: Result) -> None:
        """One result; each id comes once."""

    def conclude(self, verdict: str) -> None:
        """All is done. verdict: what it is in one line, or nothing."""


class Missing(Unavailable):
    """This machine has no such device."""


class Hung(Exception):
    """No answer in time."""


class Suite:
    """Does jobs one after another. A context manager: leaving it ends the worker."""

    def __init__(self, command: tuple[str, ...] = COMMAND) -> None:
        self._command = command
        self._worker: Worker | None = None
        self.devices: tuple[str, ...] = ()
        """What the machine has; known once a job has run."""
        self._started()

    def run(self, job: Job, listener: Listener) -> None:
        """Do a job; each of its checks gives one result, whatever it does.

        Raises: PolyattnError where the question is wrong: an unknown name, no such file;
        Missing; WorkerFailed where the suite itself is at fault.
        """
        course = _Course(job, listener)
        try:
            while not course.over:
                self._follow(course)
        except BaseException:
            # What the worker still says belongs to this job, and not to the next.
            self.close()
            raise

    def parts(self) -> tuple[str, ...]:
        """The framework's own parts, which have checks as well."""
        (found,) = self._started().events("parts")
        return tuple(found["names"])

    def close(self) -> None:
        """End the worker, whatever it is doing."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ended_by: object) -> None:
        self.close()

    def _follow(self, course: _Course) -> None:
        """One worker, until it is done or ends."""
        worker = self._started()
        try:
            for event in self._events(worker, course):
                self.devices = tuple(event.get("devices", self.devices))
                course.take(event)
                if course.unanswered >= MOST_ENDS:
                    self.close()
                    return
        except Hung:
            self.close()
            course.hung()
        except WorkerFailed as error:
            if course.stage == "starting":
                raise
            if worker.alive and not course.broke(str(error)):
                raise
            if not worker.alive:
                course.died(str(error))
            self.close()

    def _started(self) -> Worker:
        if self._worker is not None and not self._worker.alive:
            self.close()
        if self._worker is None:
            self._worker = Worker(threads=1, command=self._command)
        return self._worker

    def _events(self, worker: Worker, course: _Course) -> Iterator[Event]:
        worker.start("check", **course.request())
        while True:
            event = worker.next_event(timeout=course.patience)
            if event is None:
                raise Hung
            yield event
            if event["event"] == "done":
                return


class _Course:
    """How far a job has come, across the workers that it takes."""

    def __init__(self, job: Job, listener: Listener) -> None:
        self.job = job
        self.listener = listener
        self.stage = "starting"
        self.patience = STARTING
        self.over = False
        self.unanswered = 0
        self._ids: tuple[str, ...] = ()
        self._results: dict[str, Result] = {}
        self._running = ""
        self._spent = 0.0
        self._since: float | None = None

    def request(self) -> dict[str, Any]:
        """What the next worker is asked."""
        self.stage, self.patience, self._running = "starting", STARTING, ""
        left = None if self.job.total is None else self.job.total - self._spent
        earlier = [result.as_json() for result in self._results.values()]
        return {"task": dataclasses.asdict(self.job), "left": left, "earlier": earlier}

    def take(self, event: Event) -> None:
        """One event of the worker."""
        kind = event["event"]
        if kind == "ready":
            self.stage, self.patience = "opening", self.job.opening + OPENING_GRACE
        elif kind == "wrong":
            raise ConfigError(event["reason"])
        elif kind == "missing":
            raise Missing(event["reason"])
        elif kind == "notes" and not self._ids:
            self.listener.note(tuple(event["notes"]))
        elif kind == "planned":
            self._planned(tuple(event["ids"]))
        elif kind == "begin":
            self._running, self.patience = event["id"], event["limit"] + GRACE
        elif kind == "result":
            self._running, self.patience = "", self.job.each + GRACE
            self._heard(Result.from_json(event["result"]))
        elif kind == "verdict":
            self._conclude(event["text"])

    def hung(self) -> None:
        """The worker gave no answer in time, and was ended."""
        if self.stage == "starting":
            raise WorkerFailed(f"a worker did not start within {STARTING:g} s")
        grace = OPENING_GRACE if self.stage == "opening" else GRACE
        self._ended(ANSWERS_IN_TIME, f"it did not answer within {self.patience - grace:g} s")

    def died(self, obituary: str) -> None:
        """The worker is gone. obituary: its exit code or signal."""
        self._ended(SURVIVES, obituary)

    def broke(self, reason: str) -> bool:
        """The suite raised: whether it did so in a check, which is one error then, and goes on."""
        at = self._at()
        if self.stage != "checking" or not at:
            return False
        self._stop()
        told = f"the suite failed: {reason}"
        result = Result(id=at, status=Status.ERROR, reason=told)
        self._heard(as_expected(result, self.job.expected.get(at)))
        self.unanswered += 1
        self._go_on()
        return True

    def _planned(self, ids: tuple[str, ...]) -> None:
        if not self._ids:
            self._ids = ids
            self.listener.plan(ids)
        self.stage, self.patience = "checking", self.job.each + GRACE
        self._since = time.monotonic()

    def _heard(self, result: Result) -> None:
        """Each id once: a worker that plans other checks than the one before is not believed."""
        if result.id in self._results:
            return
        self._results[result.id] = result
        self.listener.hear(result)
        property = result.failure.property if result.failure else None
        if property is not None and property.meaning == ANSWERS_IN_TIME.meaning:
            self.unanswered += 1
            if self.unanswered >= MOST_ENDS:
                self._give_up()

    def _ended(self, property: Property, what: str) -> None:
        self._stop()
        if self.stage == "opening":
            name = "check_thing_loads" if self.job.door else "check_can_be_built"
            self._fail(name, property, f"while it was loaded and built: {what}")
            self._rest(CANNOT_BE_LOADED_AGAIN)
            return
        at = self._at()
        if at:
            told = what if self._running else f"between two checks: {what}"
            self._fail(at, property, told)
        if property is SURVIVES or not at:
            self.unanswered += 1
        self._go_on()

    def _at(self) -> str:
        """The check that is being run or that is next; nothing where all are done."""
        return self._running or next((x for x in self._ids if x not in self._results), "")

    def _stop(self) -> None:
        """The clock of the checks: it does not run until the next worker has planned them."""
        if self._since is not None:
            self._spent += time.monotonic() - self._since
            self._since = None

    def _go_on(self) -> None:
        """The rest is left to another worker, unless there were enough, or the time is over."""
        if self.over:
            return
        if self.unanswered >= MOST_ENDS:
            self._give_up()
        elif self.job.total is not None and self._spent > self.job.total:
            self._rest(f"{self.job.total:g} {TIME_IS_OVER}")

    def _fail(self, id: str, property: Property, what: str) -> None:
        failure = CheckFailure(id.partition("[")[0], property, Seen(what=what))
        result = Result(id=id, status=Status.FAILED, reason=what, failure=failure)
        self._heard(as_expected(result, self.job.expected.get(id)))

    def _give_up(self) -> None:
        if not self.over:
            self._rest(f"{self.unanswered} {TOO_MANY_ENDS}")

    def _rest(self, reason: str) -> None:
        self.over = True
        for id in self._ids:
            if id not in self._results:
                self._results[id] = Result(id=id, status=Status.NOT_RUN, reason=reason)
                self.listener.hear(self._results[id])
        first = next((x for x in self._results.values() if not x.status.good), None)
        said = f"not correct; {first.reason}" if first and self.job.door else ""
        self.listener.conclude(said or unfinished(self._results.values()))

    def _conclude(self, verdict: str) -> None:
        if not self.over:
            self.over = True
            self.listener.conclude(verdict)
