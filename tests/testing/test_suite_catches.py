"""The suite tested: every check catches what it is for, by name, and correct code passes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cache

import pytest
from tests.testing import broken, broken_in_order, broken_manners, broken_maps
from tests.testing.correct import Online, Plain

from polyattn.testing import Result, Status, run_checks, subjects_of_class
from polyattn.testing.planned import Check
from polyattn.testing.runner import checks_of

CAUGHT = (
    *broken.CAUGHT,
    *broken_in_order.CAUGHT,
    *broken_manners.CAUGHT,
    *broken_maps.CAUGHT,
)


def checks(variant: type, name: str | None = None) -> list[Check]:
    """All checks of a class, or those of one name."""
    found = checks_of(subjects_of_class(variant.__name__, variant))
    return [check for check in found if name in (None, check.id.partition("[")[0])]


def failures(results: Iterable[Result]) -> list[Result]:
    return [result for result in results if not result.status.good]


@pytest.mark.parametrize(
    ("variant", "name"), CAUGHT, ids=[f"{cls.__name__}-{name}" for cls, name in CAUGHT]
)
def test_a_broken_variant_is_caught_by_name(variant: type, name: str) -> None:
    planned = checks(variant, name)
    assert planned, f"{name} is not generated for {variant.__name__}"
    failed = failures(run_checks(planned, on_fail="collect"))
    assert failed
    assert all(result.status is Status.FAILED for result in failed), failed[0].reason
    assert failed[0].failure is not None
    assert name in str(failed[0].failure)


@pytest.mark.parametrize("variant", [Plain, Online, broken_maps.PlainGate])
def test_a_correct_variant_passes_everything(variant: type) -> None:
    failed = failures(run_checks(checks(variant), on_fail="collect"))
    assert not failed, "\n".join(f"{result.id}: {result.reason}" for result in failed)


@cache
def _every_check() -> frozenset[str]:
    names = {check.id.partition("[")[0] for check in checks(Plain)}
    names |= {check.id.partition("[")[0] for check in checks(broken_maps.PlainGate)}
    return frozenset(names | {"check_unsupported_raises"})


def test_every_check_catches_at_least_two_broken_variants() -> None:
    kills = Counter(name for _, name in CAUGHT)
    assert {name: kills[name] for name in _every_check() if kills[name] < 2} == {}
    assert set(kills) <= _every_check()


def test_ids_are_unique() -> None:
    ids = Counter(check.id for check in checks(Plain))
    assert [id for id, count in ids.items() if count > 1] == []
