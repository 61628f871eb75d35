"""Results as data; expected failures that stay true; failures that stand alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.testing.broken_maps import PlainGate
from tests.testing.correct import Plain

from polyattn.contract import FeatureMapAttention, SequenceAttention
from polyattn.errors import ConfigError, UnknownName, Unsupported
from polyattn.testing import (
    CheckFailure,
    Result,
    Status,
    check_class,
    check_variant,
    parametrize_with_checks,
    run_checks,
)
from polyattn.testing.planned import Check, planned, withheld
from polyattn.testing.results import Mismatch, Seen, proves
from polyattn.testing.runner import checks_of_name
from polyattn.testing.tools.devices import Place


@proves("One is one.", causes=("arithmetic",), claim="numbers")
def check_one(value: int, error: type[Exception] | None = None) -> None:
    if error is not None:
        raise error("planted")
    if value != 1:
        raise Mismatch(Seen(what="it is not one", got=2.0, expected=1.0, tolerance=0.0, index=(0,)))


def status(check: Check, **parameters: object) -> Result:
    return run_checks([check], on_fail="collect", **parameters)[0]  # type: ignore[arg-type]


def test_a_failure_stands_alone() -> None:
    result = status(planned(check_one, "two", 2))
    assert result.status is Status.FAILED
    text = str(result.failure)
    for words in ("check_one", "One is one.", "it is not one", "got 2", "arithmetic", "numbers"):
        assert words in text
    assert json.loads(json.dumps(result.as_json()))["failure"]["index"] == [0]


def test_an_unexpected_exception_is_an_error_and_no_failure() -> None:
    result = status(planned(check_one, "odd", 1, error=KeyError))
    assert result.status is Status.ERROR
    assert "KeyError" in result.reason


def test_an_expected_failure_is_strict() -> None:
    expected = {"check_one[x]": "known"}
    assert status(planned(check_one, "x", 2), expected_failures=expected).status is Status.XFAILED
    healed = status(planned(check_one, "x", 1), expected_failures=expected)
    assert healed.status is Status.XPASSED
    assert not healed.status.good
    missing = planned(check_one, "x", 1, error=ImportError)
    assert status(missing, expected_failures=expected).status is Status.ERROR


def test_a_stale_id_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"check_one\[gone\].*no such check"):
        run_checks([planned(check_one, "x", 1)], expected_failures={"check_one[gone]": "old"})


def test_an_expected_failure_of_what_is_not_claimed_is_an_error_that_names_it() -> None:
    def refuse() -> None:
        raise Unsupported("it", [])

    expected = {"check_one": "known"}
    claimed_no_more = withheld(check_one, Status.NOT_CLAIMED, "nobody asked")
    refused = Check("check_one", run=refuse, may_refuse=True)
    for check in (claimed_no_more, refused):
        result = status(check, expected_failures=expected)
        assert result.status is Status.ERROR
        assert "check_one: expected to fail (known) and is not claimed" in result.reason
    idle = withheld(check_one, Status.NOT_RUN, "no time")
    assert status(idle, expected_failures=expected).status is Status.NOT_RUN


def test_a_part_elsewhere_is_looked_up_and_listed_as_not_run() -> None:
    checks = list(checks_of_name("core/rope", Place("cuda")))
    idle = [check for check in checks if check.withheld is not Status.NOT_CLAIMED]
    assert len(idle) > 5
    assert {check.withheld for check in idle} == {Status.NOT_RUN}
    assert all("on the CPU alone, not on cuda" in check.reason for check in idle)
    with pytest.raises(UnknownName, match="did you mean 'core/rope'"):
        list(checks_of_name("core/rop", Place("cuda")))


@pytest.mark.parametrize("name", ["se", "core/rope"])
def test_a_device_that_is_not_known_is_refused_with_those_that_are(name: str) -> None:
    with pytest.raises(ConfigError, match="device = 'cuda:0': expected 'cpu' or 'cuda'"):
        check_variant(name, device="cuda:0")
    with pytest.raises(ConfigError, match="expected 'cpu' or 'cuda'"):
        parametrize_with_checks([name], device="gpu")


def test_on_fail_raises_the_first_failure() -> None:
    heard: list[str] = []
    checks = [planned(check_one, label, value) for label, value in (("a", 1), ("b", 2), ("c", 3))]
    with pytest.raises(CheckFailure, match="it is not one"):
        run_checks(checks, callback=lambda result: heard.append(result.id))
    assert heard == ["check_one[a]", "check_one[b]"]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"on_fail": "maybe"}, "on_fail: expected 'raise' or 'collect', got 'maybe'"),
        ({"on_fail": None}, "on_fail: expected 'raise' or 'collect', got None"),
        ({"callback": 3}, "callback: expected a function of a result, or None, got a int"),
        ({"extended": "x"}, "extended: expected True or False, got 'x'"),
    ],
)
def test_an_option_that_is_none_is_refused_before_anything_is_run(
    given: dict[str, Any], told: str
) -> None:
    ran: list[int] = []
    ways: list[Callable[[], object]] = [
        lambda: run_checks([Check("check_a", run=lambda: ran.append(1))], **given),
        lambda: check_variant("core/rope", **given),
        lambda: check_class(Plain, **given),
    ]
    for ask in ways:
        with pytest.raises(ConfigError, match=told):
            ask()
    assert not ran


@pytest.mark.parametrize(
    ("examples", "got"),
    [
        ((), "got an empty tuple"),
        (None, "got None"),
        (7, "got a int"),
        (iter(()), "got a tuple_iterator"),
        ((None,), "got None in it"),
        (({"left": 1},), "got a dict in it"),
    ],
)
@pytest.mark.parametrize("kind", [Plain, PlainGate])
def test_wrong_examples_are_one_failed_result(
    kind: type[SequenceAttention] | type[FeatureMapAttention], examples: object, got: str
) -> None:
    broken = type("Broken", (kind,), {"examples": staticmethod(lambda: examples)})
    results = check_class(broken, on_fail="collect")
    assert [(x.name, x.status) for x in results] == [("check_can_be_built", Status.FAILED)]
    assert results[0].reason == f"examples(): expected a tuple of at least one config, {got}"


@pytest.mark.parametrize(
    ("kind", "expected"), [(Plain, "Capabilities"), (PlainGate, "FeatureMapCapabilities")]
)
def test_claims_that_are_none_are_one_failed_result(
    kind: type[SequenceAttention] | type[FeatureMapAttention], expected: str
) -> None:
    broken = type("Broken", (kind,), {"capabilities_for": staticmethod(lambda config: None)})
    results = check_class(broken, on_fail="collect")
    assert [(x.name, x.status) for x in results] == [("check_can_be_built", Status.FAILED)]
    assert results[0].reason == f"capabilities_for(): expected {expected}, got None"


def test_what_is_withheld_is_listed_with_its_reason() -> None:
    result = status(withheld(check_one, Status.NOT_CLAIMED, "nobody asked"))
    assert (result.status, result.reason) == (Status.NOT_CLAIMED, "nobody asked")


def test_when_time_is_over_the_rest_is_listed_as_not_run() -> None:
    results = run_checks([planned(check_one, "x", 2)], on_fail="collect", limit=-1.0)
    assert [result.status for result in results] == [Status.NOT_RUN]


def test_a_check_is_a_plain_function() -> None:
    check_one(1)
    with pytest.raises(CheckFailure):
        check_one(2)


def test_a_run_leaves_the_random_state_alone_and_repeats_itself() -> None:
    before = torch.get_rng_state()
    first, second = (check_variant("se", on_fail="collect") for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert [(r.id, r.status) for r in first] == [(r.id, r.status) for r in second]
