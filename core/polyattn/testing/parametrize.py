"""One pytest test for each check: ``@parametrize_with_checks(["my_variant"])``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import pytest

from polyattn.errors import ConfigError, PolyattnError, Unavailable
from polyattn.testing.asked import described, expected_failures_of
from polyattn.testing.planned import Check
from polyattn.testing.results import (
    CheckFailure,
    Property,
    Seen,
    Status,
    expected_of,
    need_ids,
    not_expected,
)
from polyattn.testing.runner import checks_of, checks_of_name, prepared, run_check
from polyattn.testing.subjects.variant import AnySubject
from polyattn.testing.tools.devices import place_of
from polyattn.testing.tools.tracebacks import without_the_suite

Test = TypeVar("Test", bound=Callable[..., object])

USABLE = Property(
    meaning="What is registered under this name can be used here.",
    causes=("a package that it needs is not installed", "two packages bring the same name"),
)


@dataclasses.dataclass(frozen=True)
class Case:
    """One check as a test: call it. ``reason`` is why a failure of it is expected, or empty."""

    name: str
    check: Check
    reason: str = ""

    @property
    def id(self) -> str:
        return f"{self.name}-{self.check.id}"

    @property
    def marks(self) -> list[pytest.MarkDecorator]:
        """Strict, and for a property that does not hold alone: an error is not expected."""
        if not self.reason:
            return []
        return [pytest.mark.xfail(reason=self.reason, raises=CheckFailure, strict=True)]

    def __call__(self) -> None:
        """Run it. Raises: CheckFailure; what was raised where it is no finding; pytest's skip."""
        __tracebackhide__ = True
        result = run_check(self.check)
        if self.reason and result.status is Status.NOT_CLAIMED:
            # No CheckFailure, which alone is expected: the test fails.
            raise AssertionError(f"{self.id}: {not_expected(self.reason, result.reason)}")
        if result.status is Status.PASSED:
            return
        if result.status.good:
            pytest.skip(result.reason)
        if result.failure is not None:
            raise without_the_suite(result.failure.with_traceback(None))
        assert result.error is not None
        raise without_the_suite(result.error)


def cases_of(
    names: Sequence[str | AnySubject],
    expected_failures: Mapping[str, str] | None = None,
    *,
    extended: bool = False,
    device: str = "cpu",
) -> list[Case]:
    """The checks of several names or subjects as tests. Parameters as of the decorator.

    What is not claimed is left out, and so is what takes seconds, unless it is asked for. What
    could not be run is skipped, with its reason.
    Raises: UnknownName; ConfigError for expected failures that belong to no check, or to one that
    is not claimed.
    """
    expected, known = expected_failures_of(expected_failures), set[str]()
    cases: list[Case] = []
    for name, checks in _by_name(names, device):
        own = expected_of(name, expected)
        planned = prepared(checks, {}, extended=True)
        known |= {check.id for check in planned} | {f"{name}-{check.id}" for check in planned}
        for check in planned:
            if check.withheld is Status.NOT_CLAIMED and check.id in own:
                stale = not_expected(own[check.id], check.reason)
                raise ConfigError(f"expected_failures: {name}-{check.id}: {stale}")
            left_out = check.withheld is Status.NOT_CLAIMED or (check.extended and not extended)
            if not left_out:
                cases.append(Case(name, check, own.get(check.id, "")))
    need_ids(expected, known)
    return cases


def _by_name(
    names: Sequence[str | AnySubject], device: str
) -> Iterator[tuple[str, Sequence[Check]]]:
    from polyattn.registry import discover

    place = place_of(device)
    for name in names:
        if not isinstance(name, str):
            yield name.name, list(checks_of({"": name}))
            continue
        if "/" not in name and name not in discover().names():
            # Says which names there are; a registered one that cannot be used is a failed test.
            discover().find(name)
        try:
            yield name, list(checks_of_name(name, place))
        except PolyattnError as error:
            yield name, [_unusable(error)]


def _unusable(error: PolyattnError) -> Check:
    def fail() -> None:
        raise CheckFailure("check_usable", USABLE, Seen(what=str(error)))

    return Check(id="check_usable", run=fail)


def _need_names(names: object) -> None:
    asked = "parametrize_with_checks"
    if not isinstance(names, Sequence) or not names:
        got = "an empty one" if isinstance(names, Sequence) else described(names)
        raise ConfigError(f"{asked}: expected a list of names or subjects, got {got}")
    for name in names:
        if not isinstance(name, str | AnySubject):
            raise ConfigError(f"{asked}: expected a name or a subject, got {described(name)}")


def parametrize_with_checks(
    names: Sequence[str | AnySubject],
    *,
    expected_failures: Mapping[str, str] | None = None,
    extended: bool = False,
    device: str = "cpu",
) -> Callable[[Test], Test]:
    """A decorator: the test is run once for each check, as ``name-check_id``, and calls it.

    >>> @parametrize_with_checks(["se"])
    ... def test_conformance(check):
    ...     check()

    names: what is registered, or subjects as ``subjects_of_class`` gives them.
    expected_failures: ``{id: reason}``, the id with or without ``name-`` before it. Strict: one
    that passes fails, and one that belongs to no check is an error when tests are collected.
    extended: what takes seconds as well. device: where its code runs, by type; where there is none
    here, one test is skipped and says so.
    """
    if isinstance(names, str):
        raise ConfigError(f"parametrize_with_checks: expected a list, as [{names!r}]")
    _need_names(names)
    parameters: list[Any]
    try:
        place_of(device)
    except Unavailable:
        skip = pytest.mark.skip(reason=f"there is no {device} device here")
        parameters = [pytest.param(None, id=device, marks=skip)]
    else:
        parameters = [
            pytest.param(case, id=case.id, marks=case.marks)
            for case in cases_of(names, expected_failures, extended=extended, device=device)
        ]

    def decorate(test: Test) -> Test:
        marked: Test = pytest.mark.parametrize("check", parameters)(test)
        return marked

    return decorate
