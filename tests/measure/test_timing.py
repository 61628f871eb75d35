"""All variants at one length: whatever happens to one is written beside it. Real, tiny timings;
only their presence is tested."""

import dataclasses

import pytest
import torch
from tests.measure import planted

from polyattn import factory
from polyattn.errors import UnknownName
from polyattn.measure import timing
from polyattn.measure.results import LengthRun
from polyattn.measure.timing import TimingRequest, measure_length
from polyattn.operation import Operation


@dataclasses.dataclass
class Blueprint:
    cls: type
    kind: str = "sequence"

    def build(self, sizes):
        return self.cls(None, sizes)


@pytest.fixture
def shelf(monkeypatch):
    known = {"right": Blueprint(planted.Right), "other": Blueprint(planted.Right)}

    def resolve(name):
        if name not in known:
            raise UnknownName(f"unknown name {name!r}")
        return known[name]

    monkeypatch.setattr(factory, "resolve", resolve)
    monkeypatch.setattr(timing, "YARDSTICK", 64)
    threads = torch.get_num_threads()
    yield known
    torch.set_num_threads(threads)


def measure(*names, **changes):
    request = {
        "variants": names,
        "baseline": "right",
        "length": 64,
        "heads": 2,
        "head_dim": 16,
        "threads": 1,
        "seconds": 0.0,
        "patience": 0.0,
        "seed": 0,
    }
    events = list(measure_length(TimingRequest(**{**request, **changes})))
    results = [LengthRun.model_validate(e["result"]) for e in events if e["event"] == "result"]
    return results, events


def test_everything_is_measured(shelf):
    (first, whole), events = measure("right", "other")
    assert first.backward is None
    for measurement in whole.measurements:
        assert measurement.proof.passed
        assert measurement.reason == ""
        for kind in ("forward", "backward"):
            assert len(measurement.timing(kind).wall) >= 3
            # The map of two heads, in float32, is held at least once.
            assert measurement.timing(kind).peak >= 2 * 64 * 64 * 4
            assert whole.run(kind).again is not None
            assert len(whole.run(kind).yardstick) == len(measurement.timing(kind).wall)
    assert {e["variant"] for e in events if e["event"] == "begin"} == {"right", "other", ""}


@pytest.mark.parametrize(
    ("blueprint", "reason"),
    [
        (Blueprint(planted.Raises), "RuntimeError: planted failure"),
        (Blueprint(planted.WrongScale), "wrong at length 64: the output differs"),
        (Blueprint(planted.Right, kind="feature_map"), "it works on feature maps"),
        (None, "unknown name 'odd'"),
    ],
)
def test_one_that_fails_stays_with_its_reason_and_the_others_go_on(shelf, blueprint, reason):
    if blueprint:
        shelf["odd"] = blueprint
    whole = measure("right", "odd", "other")[0][-1]
    right, odd, other = whole.measurements
    assert odd.reason.startswith(reason)
    assert odd.forward is None
    assert odd.backward is None
    for fine in (right, other):
        assert fine.reason == ""
        assert fine.backward is not None


def chooser(first):
    """An operation that answers differently with gradients and without."""

    def build(config, sizes):
        members = {"first": first(None, sizes), "second": planted.Right(None, sizes)}
        return Operation("chooser", members, planted.Right.Config(), sizes)

    return Blueprint(build)


def test_who_runs_is_asked_for_each_pass(shelf):
    shelf["chooser"] = chooser(planted.ForwardOnly)
    right, chosen = measure("right", "chooser")[0][-1].measurements
    assert right.ran == {"forward": "right", "backward": "right"}
    assert chosen.ran == {"forward": "first", "backward": "second"}
    assert (chosen.reason, chosen.proof.passed) == ("", True)


def test_who_runs_without_gradients_is_proven_too(shelf):
    shelf["chooser"] = chooser(planted.WrongForwardOnly)
    chosen = measure("right", "chooser")[0][-1].measurements[1]
    assert chosen.reason.startswith("wrong at length 64: the output differs")
    assert chosen.forward is None


def test_without_its_baseline_a_length_has_no_ratios(shelf):
    whole = measure("other")[0][-1]
    assert whole.forward.again is None
    assert whole.measurements[0].forward is not None


def test_if_all_fail_nothing_is_timed(shelf):
    whole = measure("nobody")[0][-1]
    assert whole.forward is None
    assert whole.measurements[0].reason == "unknown name 'nobody'"


def test_void_rounds_are_tried_again_only_if_they_were_cheap(shelf, monkeypatch):
    monkeypatch.setattr(timing, "is_void", lambda samples: True)
    dear = measure("right")[0][-1]
    cheap = measure("right", patience=1000.0)[0][-1]
    assert (dear.forward.void, dear.forward.tries) == (True, 1)
    assert (cheap.forward.void, cheap.forward.tries) == (True, 2)
