"""The doors of modules, models and transformers' functions: every check catches what it is for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from tests.testing import things_hf, things_models, things_modules, things_right_networks
from tests.testing.planted import as_meant

from polyattn.testing import Result, Status, run_checks
from polyattn.testing.doors.hf import hf_door
from polyattn.testing.doors.lm import model_door
from polyattn.testing.doors.module import module_door

OPENED: dict[str, Callable[[Any], Any]] = {
    "module": lambda thing: module_door(thing.__name__, thing, patience=30.0),
    "lm": lambda thing: model_door(thing.__name__, thing, patience=30.0),
    "hf": lambda thing: hf_door(thing.__name__, lambda: thing, patience=30.0),
}
THINGS = {"module": things_modules, "lm": things_models, "hf": things_hf}
CAUGHT = tuple(
    (door, thing, check) for door, module in THINGS.items() for thing, check in module.CAUGHT
)

RIGHT = (
    *((door, thing) for door, module in THINGS.items() for thing in module.GOOD),
    *(("module", thing) for thing in things_right_networks.MODULES),
    *(("lm", thing) for thing in things_right_networks.MODELS),
)


def results_of(door: str, thing: Any, name: str | None = None) -> list[Result]:
    checks = OPENED[door](thing).checks()
    wanted = [check for check in checks if name in (None, check.id.partition("[")[0])]
    assert wanted, f"{name} is not asked of {thing.__name__}"
    return run_checks(wanted, on_fail="collect", limit=30.0)


@pytest.mark.parametrize(
    ("door", "thing", "name"), CAUGHT, ids=[f"{x.__name__}-{name}" for _, x, name in CAUGHT]
)
def test_a_fault_is_caught_by_name(door: str, thing: Any, name: str) -> None:
    found = results_of(door, thing, name)
    bad = [result for result in found if result.failure is not None]
    assert bad, [f"{result.status} {result.reason}" for result in found]
    assert all(result.status in (Status.FAILED, Status.DOES_NOT_HOLD) for result in bad)
    assert as_meant(thing, bad), f"it is not caught for what it is: {bad[0].reason}"


@pytest.mark.parametrize(("door", "thing"), RIGHT, ids=[thing.__name__ for _, thing in RIGHT])
def test_right_code_passes_everything(door: str, thing: Any) -> None:
    opened = OPENED[door](thing)
    results = run_checks(opened.checks(), on_fail="collect")
    failed = [f"{result.id}: {result.reason}" for result in results if result.failure]
    assert failed == []
    assert len(results) > 25
    assert not opened.verdict(results).startswith("not")


def test_a_right_object_passes_everything() -> None:
    """There is no class of which the checks could make another."""
    thing = things_right_networks.temperature_made_once
    results = run_checks(module_door("it", lambda: thing, patience=30.0).checks())
    assert [f"{result.id}: {result.reason}" for result in results if result.failure] == []


def test_every_check_catches_at_least_two() -> None:
    kills = Counter(name for _, _, name in CAUGHT)
    known = {
        check.id.partition("[")[0]
        for door, module in THINGS.items()
        for thing in module.GOOD
        for check in OPENED[door](thing).checks()
        if check.id.startswith(("check_module", "check_lm", "check_hf"))
    }
    assert {name: kills[name] for name in known if kills[name] < 2} == {}
    assert set(kills) <= known
