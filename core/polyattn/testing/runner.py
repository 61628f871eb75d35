"""Running checks: results as data, expected failures that stay true."""

from __future__ import annotations

import contextlib
import dataclasses
import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from time import monotonic, perf_counter  # Bound here: code may replace them.
from typing import Literal

from polyattn.contract import FeatureMapAttention, SequenceAttention
from polyattn.errors import ConfigError, PolyattnError, Unsupported
from polyattn.testing.asked import described, expected_failures_of, need_class
from polyattn.testing.checks.contract import check_output_shape_dtype_device
from polyattn.testing.checks.devices import check_unclaimed_device_is_refused
from polyattn.testing.generate.variants import iter_checks
from polyattn.testing.planned import Check, Trait, not_run, planned, withheld
from polyattn.testing.process.contained import TimeUp, contained, limited, words_of
from polyattn.testing.process.settings import settings_restored, surroundings_restored
from polyattn.testing.results import (
    ANSWERS_IN_TIME,
    CheckFailure,
    Mismatch,
    Property,
    Result,
    Seen,
    Status,
    as_expected,
    need_ids,
)
from polyattn.testing.subjects.parts import checks_of_part, is_part
from polyattn.testing.subjects.sequence import blaming
from polyattn.testing.subjects.variant import AnySubject, Maker, makers_of, makers_of_class
from polyattn.testing.tools.devices import CPU, Place, place_of

Callback = Callable[[Result], None]

BUILDS = Property(
    meaning="It can be built under each of its examples.",
    causes=(
        "examples() holds a config that the constructor refuses",
        "a constructor that needs sizes where it is given none",
    ),
)
LEAVES_THE_PROCESS = Property(
    meaning="A call leaves the process in a state in which other code can run.",
    causes=(
        "a mode that is entered and never left: inference_mode, a TorchFunctionMode",
        "a function of torch replaced by another",
        "a timer, a handler of a signal or a recursion limit that is not put back",
    ),
)


def check_variant(
    name: str,
    *,
    expected_failures: Mapping[str, str] | None = None,
    on_fail: Literal["raise", "collect"] = "raise",
    callback: Callback | None = None,
    extended: bool = False,
    device: str = "cpu",
) -> list[Result]:
    """Check a registered variant, operation or preset under each of its examples, or a part of the
    framework (``core/rope``).

    expected_failures: ``{id: reason}``, strict: one that passes fails the run, and so does an id
    that belongs to no check. callback: told of each result as it comes.
    extended: run what takes seconds (compilation) as well. device: where its code runs, by type.
    Code that hangs, or ends the process, is not contained here: ``polyattn check`` does that.
    Raises: CheckFailure at the first failure with ``on_fail="raise"``; ConfigError for ids that
    match nothing; UnknownName and others for a name that cannot be used; Unavailable for a device
    that is not here; whatever an unexpected error of the suite is, as it is.
    """
    return run_checks(
        checks_of_name(name, place_of(device)),
        expected_failures=expected_failures,
        on_fail=on_fail,
        callback=callback,
        extended=extended,
    )


def check_class(
    variant: type[SequenceAttention] | type[FeatureMapAttention],
    *,
    expected_failures: Mapping[str, str] | None = None,
    on_fail: Literal["raise", "collect"] = "raise",
    callback: Callback | None = None,
    extended: bool = False,
    device: str = "cpu",
) -> list[Result]:
    """``check_variant`` for a class that is not registered, or not yet. Parameters as there.

    Raises: as there, Unavailable too, but for what names raise.
    """
    need_class("check_class", variant, SequenceAttention, FeatureMapAttention)
    place = place_of(device)
    return run_checks(
        _checks_of_class(variant, place),
        expected_failures=expected_failures,
        on_fail=on_fail,
        callback=callback,
        extended=extended,
    )


def checks_of_name(name: str, place: Place = CPU) -> Iterator[Check]:
    """The checks of whatever goes by a name. A subject that cannot be built is one that fails.

    Raises: UnknownName, NameClash, Unavailable.
    """
    if not isinstance(name, str):
        raise ConfigError(f"check_variant: expected the name of a variant, got {described(name)}")
    if is_part(name):
        reason = f"it is checked on the CPU alone, not on {place.name}"
        found = checks_of_part(name)
        yield from found if place.here else (not_run(check, reason) for check in found)
        return
    try:
        with contained():
            makers = makers_of(name, place)
    except PolyattnError:
        raise
    except Exception as error:
        makers = {"": _raising(error)}
    yield from _checks_of_makers(makers)


def _checks_of_class(
    variant: type[SequenceAttention] | type[FeatureMapAttention], place: Place
) -> Iterator[Check]:
    try:
        with contained():
            makers = makers_of_class(variant.__name__, variant, place)
    except Exception as error:
        makers = {"": _raising(error)}
    yield from _checks_of_makers(makers)


def _checks_of_makers(makers: Mapping[str, Maker]) -> Iterator[Check]:
    for label, make in makers.items():
        try:
            with blaming("one of its examples"):
                subject = make()
        except Exception as error:
            yield _labelled(_failing(error), label)
        else:
            yield from checks_of({label: subject})


def _raising(error: Exception) -> Maker:
    def make() -> AnySubject:
        raise error

    return make


def _failing(error: Exception) -> Check:
    """A check that has failed already: with a finding, or with what is no finding."""

    def check_can_be_built() -> None:
        if isinstance(error, Mismatch):
            raise CheckFailure("check_can_be_built", BUILDS, error.seen)
        raise error

    return planned(check_can_be_built)


def checks_of(subjects: Mapping[str, AnySubject]) -> Iterator[Check]:
    """The checks of several subjects, their labels made part of the ids."""
    for label, subject in subjects.items():
        place = subject.place
        claimed = place.name in subject.capabilities.devices
        for check in iter_checks(subject) if claimed else _unclaimed(subject):
            yield _labelled(check if place.here else _elsewhere(check, place), label)


def _unclaimed(subject: AnySubject) -> Iterator[Check]:
    """All that there is to check on a device that is not claimed."""
    yield planned(check_unclaimed_device_is_refused, "", subject)
    reason = f"the device {subject.place.name} is not claimed"
    yield withheld(check_output_shape_dtype_device, Status.NOT_CLAIMED, reason)


def _elsewhere(check: Check, place: Place) -> Check:
    if Trait.ON_THE_CPU not in check.traits:
        return check
    return not_run(check, f"it is carried out on the CPU alone, not on {place.name}")


def _labelled(check: Check, label: str) -> Check:
    if not label:
        return check
    name, bracket, rest = check.id.partition("[")
    joined = f"{name}[{rest[:-1]};{label}]" if bracket else f"{name}[{label}]"
    return dataclasses.replace(check, id=joined)


def prepared(
    checks: Iterable[Check], expected: Mapping[str, str], *, extended: bool = False
) -> list[Check]:
    """The checks, those that were not asked for withheld.

    Raises: ConfigError for an expected failure that belongs to no check.
    """
    found = [
        not_run(check, "takes seconds: ask for it with --extended")
        if check.extended and not extended
        else check
        for check in checks
    ]
    need_ids(expected, {check.id for check in found})
    return found


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
    _need_options(on_fail, callback, extended)
    expected = expected_failures_of(expected_failures)
    results: list[Result] = []
    started = monotonic()
    for check in prepared(checks, expected, extended=extended):
        if limit is not None and monotonic() > started + limit:
            check = not_run(check, f"{limit:g} seconds were over")
        result = run_check(check, expected.get(check.id), patience=limit)
        results.append(result)
        if callback is not None:
            callback(result)
        if on_fail == "raise" and not result.status.good:
            unexplained = AssertionError(f"{result.id}: {result.reason}")
            raise result.failure or result.error or unexplained
    return results


def _need_options(on_fail: object, callback: object, extended: object) -> None:
    """Raises: ConfigError for what is none, before anything is run."""
    if on_fail not in ("raise", "collect"):
        raise ConfigError(f"on_fail: expected 'raise' or 'collect', got {described(on_fail)}")
    if callback is not None and not callable(callback):
        told = described(callback)
        raise ConfigError(f"callback: expected a function of a result, or None, got {told}")
    if not isinstance(extended, bool):
        raise ConfigError(f"extended: expected True or False, got {described(extended)}")


def run_check(
    check: Check, expected_failure: str | None = None, *, patience: float | None = None
) -> Result:
    """Run one check. Its prints are swallowed, the process's settings are put back.

    patience: seconds after which it is ended, as a failure.
    """
    if check.withheld is not None:
        listed = Result(id=check.id, status=check.withheld, reason=check.reason)
        return as_expected(listed, expected_failure)
    started = perf_counter()
    result = _outcome(check, patience)
    result = dataclasses.replace(result, seconds=perf_counter() - started)
    return as_expected(result, expected_failure)


def _outcome(check: Check, patience: float | None) -> Result:
    with settings_restored(), surroundings_restored() as left:
        result = _judged(check, patience)
    return _with_left_behind(check, result, left) if left else result


def _with_left_behind(check: Check, result: Result, left: list[str]) -> Result:
    """It fails for what it left behind: any check after it would, for no fault of its own."""
    told = f"its call left behind, changed: {', '.join(left)}"
    if result.status is Status.FAILED:
        return dataclasses.replace(result, reason=f"{result.reason}; {told}")
    if result.reason:
        told = f"{told}; after that, {result.reason}"
    failure = CheckFailure(check.name, LEAVES_THE_PROCESS, Seen(what=told))
    return _said(check, Status.FAILED, told, failure)


def _judged(check: Check, patience: float | None) -> Result:
    quiet = io.StringIO()
    try:
        with (
            contextlib.redirect_stdout(quiet),
            contextlib.redirect_stderr(quiet),
            limited(patience),
            contained(),
        ):
            check.run()
    except CheckFailure as failure:
        return _failed(check, failure)
    except Unsupported as error:
        if check.may_refuse:
            return _said(check, Status.NOT_CLAIMED, f"refused: {words_of(error)}")
        return _said(check, Status.ERROR, _named(error), error)
    except TimeUp as error:
        return _said(check, Status.FAILED, str(error), late(check.name, str(error)))
    except Exception as error:
        return _said(check, Status.ERROR, _named(error), error)
    return _said(check, Status.PASSED, "")


def late(check: str, what: str) -> CheckFailure:
    """The failure of what did not end in time."""
    return CheckFailure(check, ANSWERS_IN_TIME, Seen(what=what))


def _failed(check: Check, failure: CheckFailure) -> Result:
    cause = failure.__cause__
    if check.may_refuse and isinstance(cause, Unsupported):
        return _said(check, Status.NOT_CLAIMED, f"refused: {words_of(cause)}")
    if check.may_raise and cause is not None:
        return _said(check, Status.NOT_CLAIMED, failure.seen.what)
    status = Status.DOES_NOT_HOLD if check.reports else Status.FAILED
    return _said(check, status, failure.seen.what, failure)


def _said(check: Check, status: Status, reason: str, raised: BaseException | None = None) -> Result:
    if isinstance(raised, CheckFailure):
        return Result(id=check.id, status=status, reason=reason, failure=raised)
    return Result(id=check.id, status=status, reason=reason, error=raised)


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {words_of(error)}"
