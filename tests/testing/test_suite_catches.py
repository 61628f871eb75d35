"""The suite tested: every check catches what it is for, by name, and correct code passes it."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Iterable
from functools import cache

import pytest
from tests.testing import broken_manners
from tests.testing.broken_map_gates import SpatialGate
from tests.testing.broken_maps import PlainGate
from tests.testing.correct import Online, Plain
from tests.testing.correct_claims import CLAIMING
from tests.testing.correct_kinds import KINDS
from tests.testing.planted import CAUGHT, as_meant

from polyattn import Sizes
from polyattn.contract import SequenceAttention
from polyattn.operation import Operation
from polyattn.options import Options
from polyattn.testing import (
    PARTS_OF_THE_FRAMEWORK,
    Result,
    Status,
    checks_of_part,
    iter_checks,
    run_checks,
    subjects_of_class,
)
from polyattn.testing.planned import Check
from polyattn.testing.runner import checks_of
from polyattn.testing.subjects.variant import VariantSubject


def checks(variant: type, name: str | None = None) -> list[Check]:
    """All checks of a class, or those of one name. A module may say what its classes are."""
    own = getattr(importlib.import_module(variant.__module__), "checks_of_planted", None)
    found = own(variant) if own else checks_of(subjects_of_class(variant.__name__, variant))
    return [check for check in found if name in (None, check.id.partition("[")[0])]


def failures(results: Iterable[Result]) -> list[Result]:
    """What does not hold, whether it is claimed or only reported."""
    wrong = Status.DOES_NOT_HOLD
    return [result for result in results if result.status is wrong or not result.status.good]


@pytest.mark.parametrize(
    ("variant", "name"), CAUGHT, ids=[f"{cls.__name__}-{name}" for cls, name in CAUGHT]
)
def test_a_broken_variant_is_caught_by_name(variant: type, name: str) -> None:
    planned = checks(variant, name)
    assert planned, f"{name} is not generated for {variant.__name__}"
    failed = failures(run_checks(planned, on_fail="collect", extended=True))
    assert failed
    seen = (Status.FAILED, Status.DOES_NOT_HOLD)
    assert all(result.status in seen for result in failed), failed[0].reason
    assert as_meant(variant, failed), f"it is not caught for what it is: {failed[0].reason}"


@pytest.mark.parametrize("variant", [Plain, Online, *CLAIMING, *KINDS, PlainGate, SpatialGate])
def test_a_correct_variant_passes_everything(variant: type) -> None:
    failed = failures(run_checks(checks(variant), on_fail="collect", extended=True))
    assert not failed, "\n".join(f"{result.id}: {result.reason}" for result in failed)


@cache
def _every_check() -> frozenset[str]:
    names = {check.id.partition("[")[0] for check in checks(Plain)}
    names |= {check.id.partition("[")[0] for check in checks(PlainGate)}
    for part in PARTS_OF_THE_FRAMEWORK:
        names |= {check.id.partition("[")[0] for check in checks_of_part(part)}
    return frozenset(names | {"check_unsupported_raises", "check_fm_unsupported_raises"})


def test_every_check_catches_at_least_two_broken_variants() -> None:
    kills = Counter(name for _, name in CAUGHT)
    assert {name: kills[name] for name in _every_check() if kills[name] < 2} == {}
    assert set(kills) <= _every_check()


def test_an_operation_whose_member_answers_by_its_reference_is_caught() -> None:
    def build(config: Options, sizes: Sizes | None) -> SequenceAttention:
        members = {"slow": broken_manners.AnswersByItsReference(config, sizes)}
        return Operation("softmax_of_sorts", members, config, sizes)

    subject = VariantSubject("softmax_of_sorts", build, Plain.Config())
    found = {check.id: check for check in iter_checks(subject)}
    result = run_checks([found["check_backend_really_used"]], on_fail="collect")[0]
    assert result.status is Status.FAILED
    assert "answered by reference()" in result.reason


def test_what_takes_seconds_is_run_where_it_is_asked_for() -> None:
    (planned,) = checks(Plain, "check_compile")
    (result,) = run_checks([planned], on_fail="collect")
    assert result.status is Status.NOT_RUN
    assert "--extended" in result.reason


def test_a_map_of_a_class_that_a_function_made_is_copied_and_not_pickled() -> None:
    class MadeHere(PlainGate):
        pass

    name = "check_fm_deepcopy_pickle_after_forward"
    for variant, pickled in ((PlainGate, Status.PASSED), (MadeHere, Status.NOT_CLAIMED)):
        results = {x.id: x for x in run_checks(checks(variant, name), on_fail="collect")}
        found = {id: result.status for id, result in results.items()}
        assert found == {f"{name}[deepcopy]": Status.PASSED, f"{name}[pickle]": pickled}
    assert "a function made" in results[f"{name}[pickle]"].reason


def test_ids_are_unique() -> None:
    ids = Counter(check.id for check in checks(Plain))
    assert [id for id, count in ids.items() if count > 1] == []
