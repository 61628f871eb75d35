"""Running checks: results as data, expected failures that stay true."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal

from polyattn.errors import ConfigError, Unsupported
from polyattn.testing.contained import TimeUp, contained, limited
from polyattn.testing.generate import iter_checks
from polyattn.testing.planned import Check
from polyattn.testing.results import CheckFailure, Property, Result, Seen, Status
from polyattn.testing.settings import settings_restored
from polyattn.testing.variant import AnySubject, subjects_of

Callback = Callable[[Result], None]

ANSWERS_IN_TIME = Property(
    meaning="A small call is answered within the time that it is given.",
    causes=("a loop that does not end", "waiting for input, a lock or the network"),
)


def check_variant(
    name: str,
    *,
    expected_failures: Mapping[str, str] | None = None,
    on_fail: Literal["raise", "collect"] = "raise",
    callback: Callback | None = None,
    extended: bool = False,
) -> list[Result]:
    """Check a registered variant, operation or preset under each of its examples.

    expected_failures: ``{id: reason}``, strict: one that passes fails the run, and so does an id
    that belongs to no check. callback: told of each result as it comes.
    extended: run what takes seconds (compilation) as well.
    Raises: CheckFailure at the first failure with ``on_fail="raise"``; ConfigError for ids that
    match nothing; whatever an unexpected error of the suite is, as it is.
    """
    return run_checks(
        checks_of(subjects_of(name)),
        expected_failures=expected_failures,
        on_fail=on_fail,
        callback=callback,
        extended=extended,
    )


def checks_of(subjects: Mapping[str, AnySubject]) -> Iterator[Check]:
    """The checks of several subjects, their labels made part of the ids."""
    for label, subject in subjects.items():
        for check in iter_checks(subject):
            yield check if not label else _labelled(check, label)


def _labelled(check: Check, label: str) -> Check:
    name, bracket, rest = check.id.partition("[")
    joined = f"{name}[{rest[:-1]};{label}]" if bracket else f"{name}[{label}]"
    return dataclasses.replace(check, id=joined)


def run_checks(
    checks: Iterable[Check],
    *,
    expected_failures: Mapping[str, str] | None = None,
    on_fail: Literal["raise", "collect"] = "raise",
    callback: Callback | None = None,
    limit: float | None = None,
    extended: bool = False,
) -> list[Result]:
    """Run checks one by one; none depends on another. Parameters as of ``check_variant``.

    limit: after so many seconds no further check is started; the rest is listed as not run. One
    check by itself that takes longer than that is ended, and has failed.
    """
    planned = list(checks)
    expected = dict(expected_failures or {})
    stale = sorted(expected.keys() - {check.id for check in planned})
    if stale:
        raise ConfigError(
            f"expected_failures = {stale}: no such check; ids look like {planned[0].id!r}"
            if planned
            else f"expected_failures = {stale}: there is nothing to check"
        )
    results: list[Result] = []
    started = time.monotonic()
    for check in planned:
        if limit is not None and time.monotonic() > started + limit:
            reason = f"{limit:g} seconds were over"
            check = dataclasses.replace(check, withheld=Status.NOT_RUN, reason=reason)
        if check.extended and not extended:
            reason = "takes seconds: ask for it with --extended"
            check = dataclasses.replace(check, withheld=Status.NOT_RUN, reason=reason)
        result = run_check(check, expected.get(check.id), patience=limit)
        results.append(result)
        if callback is not None:
            callback(result)
        if on_fail == "raise" and not result.status.good:
            raise result.failure or AssertionError(f"{result.id}: {result.reason}")
    return results


def run_check(
    check: Check, expected_failure: str | None = None, *, patience: float | None = None
) -> Result:
    """Run one check. Its prints are swallowed, the process's settings are put back.

    patience: seconds after which it is ended, as a failure.
    """
    if check.withheld is not None:
        return Result(id=check.id, status=check.withheld, reason=check.reason)
    started = time.perf_counter()
    status, reason, failure = _outcome(check, patience)
    if expected_failure is not None:
        if status is Status.FAILED:
            status, reason = Status.XFAILED, expected_failure
        elif status is Status.PASSED:
            status = Status.XPASSED
            reason = f"expected to fail ({expected_failure}) and passed; take it off the list"
    return Result(
        id=check.id,
        status=status,
        reason=reason,
        failure=failure,
        seconds=time.perf_counter() - started,
    )


def _outcome(check: Check, patience: float | None) -> tuple[Status, str, CheckFailure | None]:
    quiet = io.StringIO()
    try:
        with (
            settings_restored(),
            contextlib.redirect_stdout(quiet),
            contextlib.redirect_stderr(quiet),
            limited(patience),
            contained(),
        ):
            check.run()
    except CheckFailure as failure:
        cause = failure.__cause__
        if check.may_refuse and isinstance(cause, Unsupported):
            return Status.NOT_CLAIMED, f"refused: {cause}", None
        if check.may_raise and cause is not None:
            return Status.NOT_CLAIMED, failure.seen.what, None
        if check.reports:
            return Status.DOES_NOT_HOLD, failure.seen.what, failure
        return Status.FAILED, failure.seen.what, failure
    except Unsupported as error:
        if check.may_refuse:
            return Status.NOT_CLAIMED, f"refused: {error}", None
        return Status.ERROR, f"{type(error).__name__}: {error}", None
    except TimeUp as error:
        late = CheckFailure(check.id.partition("[")[0], ANSWERS_IN_TIME, Seen(what=str(error)))
        return Status.FAILED, str(error), late
    except Exception as error:
        return Status.ERROR, f"{type(error).__name__}: {error}", None
    return Status.PASSED, "", None
