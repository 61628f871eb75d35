"""The worker's side of ``worker``: this module, run, plans checks and runs them.

A job is answered by the events ``ready`` (torch is there), ``notes``, ``planned``, then ``begin``
and ``result`` for each check, and at last ``verdict``; ``wrong`` and ``missing`` end it at once.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import signal
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

# Bound here: the code that is checked may replace it in its module.
from time import monotonic
from typing import TYPE_CHECKING, Any

from polyattn.errors import ConfigError, PolyattnError
from polyattn.measure.jobs import serve
from polyattn.measure.worker import Event, end_with_parent
from polyattn.testing.process.only import LEFT_OUT, meant
from polyattn.testing.process.worker import Job
from polyattn.testing.results import TIME_IS_OVER, Result, Status, unfinished

if TYPE_CHECKING:
    from polyattn.testing.doors.entrances import Opened
    from polyattn.testing.doors.function import FunctionSubject
    from polyattn.testing.planned import Check
    from polyattn.testing.tools.devices import Place


@dataclasses.dataclass(frozen=True)
class Plan:
    """What there is to run. follows: the id of the finding that explains a failure of a check."""

    checks: Sequence[Check]
    notes: Sequence[str]
    follows: Callable[[Check, Sequence[Result]], str]
    verdict: Callable[[Sequence[Result]], str]

    def of(self, only: Sequence[str]) -> Plan:
        """The same where only some are asked for (``Job.only``). Raises: ConfigError for no check.

        What is left out says nothing, of claims and of expected failures neither. A finding that
        there is nothing to check is never left out: then no text means a check that is there.
        """
        if not only:
            return self
        ids = [check.id for check in self.checks]
        before_all = {x.id for x in self.checks if x.name in _BEFORE_ALL and x.withheld is None}
        try:
            chosen = before_all | meant(only, ids)
        except ConfigError:
            if len(before_all) < len(ids) or not ids:
                raise
            chosen = before_all
        checks = [check if check.id in chosen else _left_out(check) for check in self.checks]
        if len(chosen) == len(checks):
            return self
        told = f"{len(chosen)} of {len(checks)} checks were run, as --only asks"
        return dataclasses.replace(self, checks=checks, verdict=lambda results: told)


_BEFORE_ALL = ("check_can_be_built", "check_thing_loads")
"""They are planned where they have failed."""


def _left_out(check: Check) -> Check:
    return dataclasses.replace(check, withheld=Status.NOT_RUN, reason=LEFT_OUT)


def _parts(request: Mapping[str, Any]) -> Iterator[Event]:
    from polyattn.testing.subjects.parts import PARTS_OF_THE_FRAMEWORK

    yield {"event": "names", "names": list(PARTS_OF_THE_FRAMEWORK)}


def _check(request: Mapping[str, Any]) -> Iterator[Event]:
    job = Job(**request["task"])
    import torch

    # All that takes its time to import, before the clock runs for the code.
    from polyattn.testing.doors import entrances as entrances
    from polyattn.testing.tools.devices import is_here

    # The tensors are tiny: on a busy machine, threads spend their time waiting for each other.
    torch.set_num_threads(1)
    devices = [name for name in ("cpu", "cuda") if is_here(name)]
    yield {"event": "ready", "devices": devices}
    if job.device not in devices:
        told = f"--device {job.device}: there is none here; this machine has {', '.join(devices)}"
        yield {"event": "missing", "reason": told}
        return
    try:
        plan = _through_door(job) if job.door is not None else _registered(job)
        plan = plan.of(job.only)
    except PolyattnError as error:
        yield {"event": "wrong", "reason": str(error)}
        return
    yield {"event": "notes", "notes": list(plan.notes)}
    yield {"event": "planned", "ids": [check.id for check in plan.checks]}
    results = [Result.from_json(row) for row in request["earlier"]]
    yield from _run(job, plan, results, request["left"])
    yield {"event": "verdict", "text": unfinished(results) or plan.verdict(results)}


def _run(job: Job, plan: Plan, results: list[Result], left: float | None) -> Iterator[Event]:
    """Run what has no result yet; ``results`` grows."""
    from polyattn.testing.planned import not_run
    from polyattn.testing.runner import run_check

    started = monotonic()
    done = {result.id for result in results}
    for check in plan.checks:
        if check.id in done:
            continue
        if left is not None and monotonic() > started + left:
            check = not_run(check, f"{job.total:g} {TIME_IS_OVER}")
        limit = job.each_extended if check.extended else job.each
        yield {"event": "begin", "id": check.id, "limit": limit}
        result = run_check(check, job.expected.get(check.id), patience=limit)
        if not result.status.good:
            result = dataclasses.replace(result, follows=plan.follows(check, results))
        results.append(result)
        yield {"event": "result", "result": result.as_json()}


def _through_door(job: Job) -> Plan:
    from polyattn.testing.doors.entrances import Flags, listed, open_any
    from polyattn.testing.doors.function import FunctionSubject
    from polyattn.testing.runner import prepared
    from polyattn.testing.tools.devices import Place

    assert job.door is not None
    flags = Flags(**job.wishes)
    opened = open_any(job.target, flags, door=job.door, patience=job.opening)
    if isinstance(opened.subject, FunctionSubject):
        _settle(opened.subject, Place(job.device))
    checks = _carried(prepared(listed(opened), {}, extended=job.extended), opened, job.device)
    return Plan(checks, opened.notes, lambda check, _: opened.follows(check), opened.verdict)


def _settle(subject: FunctionSubject, place: Place) -> None:
    """Have it run there, where it is taken to do what it was found to do here."""
    claims = subject.capabilities
    found = {place.name: claims.devices["cpu"]} if "cpu" in claims.devices else {}
    subject.place = place
    subject.capabilities = dataclasses.replace(claims, devices={**claims.devices, **found})


def _carried(checks: Sequence[Check], opened: Opened, device: str) -> list[Check]:
    """The checks, those withheld whose calls are not carried to the device: they would be run here
    and be told of there. What was found while it was opened was found here, and is said."""
    from polyattn.testing.planned import Trait, not_run

    if device == "cpu":
        return list(checks)
    found = {check.id for check in opened.findings}
    reason = f"it is carried out on the CPU alone, not on {device}"
    return [
        not_run(check, reason)
        if check.id not in found
        and (Trait.ON_THE_CPU in check.traits or check.id.startswith("check_hf_"))
        else check
        for check in checks
    ]


def _registered(job: Job) -> Plan:
    from polyattn.testing.planned import Trait, planned
    from polyattn.testing.process.contained import TimeUp, limited
    from polyattn.testing.runner import checks_of_name, late, prepared
    from polyattn.testing.tools.devices import Place

    try:
        with limited(job.opening):
            found = list(checks_of_name(job.target, Place(job.device)))
    except TimeUp as error:
        told = f"while it was built: {error}"

        def check_can_be_built() -> None:
            raise late("check_can_be_built", told)

        found = [planned(check_can_be_built)]
    checks = prepared(found, {}, extended=job.extended)
    asking = frozenset(check.id for check in checks if Trait.PLAIN_CALL in check.traits)
    return Plan(checks, (), functools.partial(_no_answer, asking), lambda results: "")


def _no_answer(asking: Collection[str], check: Check, results: Sequence[Result]) -> str:
    """Where no plain call is answered, every other failure follows. asking: the ids of those."""
    plain = [result for result in results if result.id in asking]
    if check.id in asking or not plain:
        return ""
    bad = all(result.status in (Status.FAILED, Status.ERROR) for result in plain)
    return plain[0].id if bad else ""


def main() -> None:
    """Serve on the standard streams, and leave neither of them to the code that is checked: what
    it prints goes to standard error, and there is no input to wait for."""
    end_with_parent()
    answers = os.fdopen(os.dup(1), "w")
    requests = os.fdopen(os.dup(0))
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    # The parent hears Ctrl-C; what is raised here is the code's own.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(requests, answers, {"check": _check, "parts": _parts})


if __name__ == "__main__":
    main()
