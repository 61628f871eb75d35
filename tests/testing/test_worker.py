"""The suite in its worker: what hangs or dies is one failed check, and the others are run.

A worker takes a second or two to start, so each of these things does several things wrong.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.testing.test_cli_check import polyattn
from tests.testing.test_devices import Elsewhere

from polyattn.cli.check_report import Report
from polyattn.errors import ConfigError
from polyattn.measure.worker import WorkerFailed
from polyattn.testing.planned import Trait
from polyattn.testing.process.jobs import _registered, _through_door
from polyattn.testing.process.worker import Job, Missing, Suite
from polyattn.testing.results import (
    ANSWERS_IN_TIME,
    SURVIVES,
    CheckFailure,
    Property,
    Result,
    Seen,
    Status,
)

THINGS = Path(__file__).parent
HOSTILE = '''
import ctypes, os, signal, sys, time, torch
import torch.nn.functional as F

def right(q, k, v):
    return F.scaled_dot_product_attention(q, k, v)

def ends(q, k, v):
    """Three heads end the process, in two dtypes; a length of 37 hangs in C, for good."""
    if q.shape[2] == 37:
        ctypes.PyDLL(None).pause()
    if q.shape[1] == 3 and q.dtype.itemsize == 8:
        os.kill(os.getpid(), signal.SIGSEGV)
    if q.shape[1] == 3 and q.dtype == torch.bfloat16:
        os._exit(7)
    return right(q, k, v)

def writes(q, k, v):
    """Three heads write wherever they can."""
    for number in range(3, 20) if q.shape[1] == 3 and q.dtype.itemsize == 8 else ():
        try:
            os.write(number, b"hello\\n")
        except OSError:
            pass
    return right(q, k, v)

def stops_the_clock(q, k, v):
    """Three heads put another function in the place of the suite's clock."""
    if q.shape[1] == 3:
        time.monotonic = lambda: 1 / 0
    return right(q, k, v)

def reads(q, k, v):
    input("your name? ")
    return right(q, k, v)

def listens_to_nobody(q, k, v):
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    if q.shape[1] == 3:
        while True: pass
    return right(q, k, v)

def meddles(q, k, v):
    import warnings, torch, random
    torch.set_default_dtype(torch.float64); torch.set_num_threads(2); torch.manual_seed(3)
    warnings.simplefilter("error"); os.chdir("/"); sys.path.insert(0, "/nowhere"); random.seed(1)
    print("hello"); sys.stderr.write("hello"); os.write(1, b"{}")
    return right(q, k, v)

def imports(q, k, v):
    import a_package_that_is_not_there
'''


class Heard(Report):
    """A report that says nothing."""

    def __init__(self, name: str = "it", **rest: Any) -> None:
        super().__init__(name, silent=True, **rest)

    def failed(self) -> dict[str, str]:
        bad = [result for result in self.results if not result.status.good]
        return {result.id: result.reason for result in bad}


@pytest.fixture(scope="module")
def suite() -> Iterator[Suite]:
    with Suite() as suite:
        yield suite


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "f.py").write_text(HOSTILE)
    return folder


def through_door(suite: Suite, folder: Path, name: str, **limits: float) -> Heard:
    wishes = {"causal": False, "mask_arg": None, "true_means": None, "reference": "softmax"}
    job = Job(target=f"{folder}/f.py:{name}", door="sdpa", wishes=wishes, **limits)  # type: ignore[arg-type]
    heard = Heard()
    suite.run(job, heard)
    ids = [result.id for result in heard.results]
    assert len(set(ids)) == len(ids), "an id came twice"
    assert set(heard.ids) <= set(ids), "a check gave no result"
    return heard


def test_a_hang_in_c_and_a_signal_are_one_failed_check_each_and_the_rest_is_run(
    suite: Suite, folder: Path
) -> None:
    heard = through_door(suite, folder, "ends", each=2.0)
    by_id = {result.id: result for result in heard.results}
    hung = [x for x in heard.results if "did not answer within 2 s" in x.reason]
    died = [x for x in heard.results if x.reason.startswith("its process")]
    assert len(hung) + len(died) == 3
    assert [x.reason for x in died[:2]] == [
        "its process ended with exit code 7",
        "its process was ended by SIGSEGV",
    ]
    assert all(x.status is Status.FAILED for x in (*hung, *died))
    assert {x.failure.property for x in hung if x.failure} <= {ANSWERS_IN_TIME}
    assert {x.failure.property for x in died if x.failure} == {SURVIVES}
    last = [x for x in heard.results if "did not come to an end" in x.reason]
    assert last
    assert {x.status for x in last} == {Status.NOT_RUN}
    assert by_id[heard.ids[0]].status is Status.PASSED


def test_where_no_plain_call_is_answered_the_other_failures_follow_from_that() -> None:
    plan = _registered(Job(target="sdpa"))
    failed = [Result(id=check.id, status=Status.FAILED) for check in plan.checks]
    plain = next(x.id for x in failed if x.name == "check_output_shape_dtype_device")
    by_id = {check.id: check for check in plan.checks}
    other = next(x for x in plan.checks if x.name == "check_matches_reference")
    assert plan.follows(other, failed) == plain
    assert plan.follows(by_id[plain], failed) == ""
    answered = [dataclasses.replace(failed[0], id=plain, status=Status.PASSED), *failed]
    assert plan.follows(other, answered) == ""


def test_code_that_silences_the_alarm_is_ended_from_outside(suite: Suite, folder: Path) -> None:
    heard = through_door(suite, folder, "listens_to_nobody", each=1.0, total=1.0)
    failed = heard.failed()
    assert list(failed.values()) == ["it did not answer within 1 s"]
    after = heard.results[[x.id for x in heard.results].index(next(iter(failed))) + 1 :]
    assert {(x.status, x.reason) for x in after} == {(Status.NOT_RUN, "1 seconds were over")}


def test_code_that_writes_into_every_stream_is_told_so(suite: Suite, folder: Path) -> None:
    failed = through_door(suite, folder, "writes").failed()
    assert "its code wrote into the suite's stream: 'hello'" in failed.values()


def test_code_that_replaces_the_clock_does_not_stop_the_suite(folder: Path) -> None:
    with Suite() as suite:
        heard = through_door(suite, folder, "stops_the_clock", total=30.0)
    # Whatever was noticed, what came before is kept and what comes after is run.
    assert {str(result.status) for result in heard.results} >= {"passed"}
    assert not heard.unfinished
    assert "the suite failed" not in str(heard.failed())


def test_code_that_waits_for_input_gets_none_and_an_import_that_fails_is_said(
    suite: Suite, folder: Path
) -> None:
    assert "EOF" in str(through_door(suite, folder, "reads", each=5.0).failed())
    told = str(through_door(suite, folder, "imports").failed())
    assert "a_package_that_is_not_there" in told


def test_what_is_changed_and_printed_is_one_finding_and_the_stream_stays_whole(
    suite: Suite, folder: Path
) -> None:
    heard = through_door(suite, folder, "meddles")
    found = {id.partition("[")[0]: why for id, why in heard.failed().items()}
    assert set(found) <= {
        "check_global_state_untouched",
        "check_eval_deterministic_and_rng_neutral",
    }
    told = found["check_global_state_untouched"]
    for words in ("default dtype", "threads", "current directory", "sys.path", "warnings"):
        assert words in told
    right = through_door(suite, folder, "right")
    assert not right.failed()


def test_a_registered_name_is_checked_and_a_wrong_question_is_raised(suite: Suite) -> None:
    heard = Heard("core/alibi")
    suite.run(Job(target="core/alibi"), heard)
    assert heard.good
    assert len(heard.results) == len(heard.ids) > 5
    with pytest.raises(ConfigError, match="unknown name"):
        suite.run(Job(target="nothing_of_the_kind"), Heard())
    with pytest.raises(ConfigError, match="no such check"):
        suite.run(Job(target="core/alibi"), Heard(expected={"check_gone": "old"}))


def test_a_device_that_is_not_here_is_said(suite: Suite) -> None:
    with pytest.raises(Missing, match="--device tpu: there is none here; this machine has cpu"):
        suite.run(Job(target="se", device="tpu"), Heard())


@pytest.mark.parametrize("door", ["module", "lm"])
def test_a_door_that_does_not_carry_its_calls_takes_no_other_device(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], door: str
) -> None:
    with pytest.raises(ConfigError, match="--device cuda belongs to --as sdpa and --as hf"):
        Job(target="f.py:f", door=door, device="cuda")
    asked = ("check", f"{THINGS}/things_modules.py:Attention", "--as", door)
    assert polyattn(monkeypatch, *asked, "--device", "cuda") == 2
    assert f"with --as {door} it is checked on the CPU alone" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("thing", "door"), [("things_hf.py:eager", "hf"), ("things.py:bare", "sdpa")]
)
def test_what_is_not_carried_to_a_device_is_not_said_to_have_run_there(
    monkeypatch: pytest.MonkeyPatch, thing: str, door: str
) -> None:
    # A device that every machine has; planning asks it what it takes.
    monkeypatch.setattr("polyattn.testing.tools.devices.Place", Elsewhere)
    job = Job(target=f"{THINGS}/{thing}", door=door, extended=True)
    here = _through_door(job).checks
    there = _through_door(dataclasses.replace(job, device="cuda")).checks
    assert [check.id for check in here] == [check.id for check in there]
    stays = {
        check.id
        for check in here
        if check.withheld is None
        and (check.name.startswith("check_hf_") or Trait.ON_THE_CPU in check.traits)
    }
    kept = {
        after.id: after.reason
        for before, after in zip(here, there, strict=True)
        if after.withheld is not before.withheld
    }
    assert kept == dict.fromkeys(stays, "it is carried out on the CPU alone, not on cuda")
    assert ("check_hf_output" in kept) == (door == "hf")
    assert len(kept) < len(there) / 2


# The parent's side alone, against a worker of a few lines

FAKE = """
import json, os, sys, time
def say(**event): print(json.dumps(event), flush=True)
def result(id, **more): say(event="result", result=dict(
    id=id, status="passed", reason="", follows="", seconds=0.0, **more))
for line in sys.stdin:
    request = json.loads(line)
    earlier = [row["id"] for row in request["earlier"]]
    say(event="ready", devices=["cpu"])
    {first}
    say(event="planned", ids=["check_a", "check_b", "check_c"])
    for id in ("check_a", "check_b", "check_c"):
        if id in earlier: continue
        say(event="begin", id=id, limit=0.2)
        {each}
        result(id)
    {last}
    say(event="verdict", text="fine")
    say(event="done")
"""


def fake(monkeypatch: pytest.MonkeyPatch, **lines: str) -> Heard:
    for grace in ("GRACE", "OPENING_GRACE"):
        monkeypatch.setattr(f"polyattn.testing.process.worker.{grace}", 0.3)
    source = FAKE
    for place in ("first", "each", "last"):
        source = source.replace(f"{{{place}}}", lines.get(place, "pass"))
    heard = Heard()
    with Suite((sys.executable, "-c", source)) as suite:
        suite.run(Job(target="it", opening=0.2, each=0.2, expected={"check_b": "known"}), heard)
    return heard


def statuses(heard: Heard) -> dict[str, str]:
    return {result.id: str(result.status) for result in heard.results}


def test_all_is_well(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = fake(monkeypatch)
    assert statuses(heard) == {"check_a": "passed", "check_b": "passed", "check_c": "passed"}
    assert heard.verdict == "fine"


def test_a_check_that_dies_is_not_tried_again_and_may_be_expected_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard = fake(monkeypatch, each="if id == 'check_b': os._exit(3)")
    assert statuses(heard) == {
        "check_a": "passed",
        "check_b": "expected failure",
        "check_c": "passed",
    }


@pytest.mark.parametrize("line", ["print('hello')", "print([1])", "os.write(1, b'\\xff\\xfe')"])
def test_what_is_written_among_the_answers_fails_the_check_that_wrote_it(
    monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    heard = fake(monkeypatch, each=f"if id == 'check_a': {line}")
    assert statuses(heard) == {"check_a": "failed", "check_b": "passed", "check_c": "passed"}
    assert heard.results[0].reason.startswith("its code wrote into the suite's stream: ")
    assert heard.verdict == "fine"


def test_a_fault_of_the_suite_in_a_check_is_one_error_and_the_rest_is_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = "if id == 'check_a': say(event='failed', reason='KeyError: planted'); time.sleep(60)"
    heard = fake(monkeypatch, each=line)
    assert statuses(heard) == {"check_a": "error", "check_b": "passed", "check_c": "passed"}
    assert heard.results[0].reason == "the suite failed: KeyError: planted"
    assert heard.verdict == "fine"


def test_a_suite_that_fails_in_every_check_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyattn.testing.process.worker.MOST_ENDS", 2)
    heard = fake(monkeypatch, each="say(event='failed', reason='it'); time.sleep(60)")
    # A check that could not be carried out is no failure that was expected.
    assert statuses(heard) == {"check_a": "error", "check_b": "error", "check_c": "not run"}


def test_a_suite_that_fails_after_the_last_check_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(WorkerFailed, match="planted"):
        fake(monkeypatch, last="say(event='failed', reason='planted'); time.sleep(60)")


def test_hanging_over_and_over_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyattn.testing.process.worker.MOST_ENDS", 2)
    heard = fake(monkeypatch, each="time.sleep(60)")
    assert statuses(heard) == {
        "check_a": "failed",
        "check_b": "expected failure",
        "check_c": "not run",
    }
    assert heard.results[2].reason == "2 checks did not come to an end: the rest was not run"


def test_failures_that_were_expected_do_not_hide_that_the_rest_was_not_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("polyattn.testing.process.worker.MOST_ENDS", 1)
    heard = fake(monkeypatch, each="if id == 'check_b': time.sleep(60)")
    assert statuses(heard) == {
        "check_a": "passed",
        "check_b": "expected failure",
        "check_c": "not run",
    }
    assert heard.good
    assert heard.unfinished == 1
    assert heard.verdict.startswith("unfinished; 1 check was not run")


@pytest.mark.parametrize("line", ["os._exit(0)", "time.sleep(60)"])
def test_what_ends_the_worker_while_it_is_built_is_one_failure(
    monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    heard = fake(monkeypatch, first=line)
    assert statuses(heard) == {"check_can_be_built": "failed"}
    assert heard.results[0].reason.startswith("while it was loaded and built: ")


@pytest.mark.parametrize("line", ["os._exit(0)", "time.sleep(60)"])
def test_what_ends_the_worker_when_all_is_done_does_not_start_it_for_ever(
    monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    heard = fake(monkeypatch, last=line)
    assert statuses(heard) == {"check_a": "passed", "check_b": "passed", "check_c": "passed"}


def test_a_suite_that_is_at_fault_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(WorkerFailed, match="KeyError: planted"):
        fake(monkeypatch, first="say(event='failed', reason='KeyError: planted')")
    with (
        Suite((sys.executable, "-c", "import nothing_there")) as suite,
        pytest.raises(WorkerFailed, match="nothing_there"),
    ):
        suite.run(Job(target="it"), Heard())


# Results on their way


def test_a_result_is_the_same_on_the_other_side() -> None:
    property = Property(meaning="It holds.", causes=("a", "b"), claim="c")
    seen = Seen(what="it does not", given="x", index=(1, 2), got=float("nan"), expected=2.0)
    failure = CheckFailure("check_x", property, seen)
    result = Result(id="check_x[1]", status=Status.FAILED, failure=failure, follows="check_y")
    text = json.dumps(result.as_json(), allow_nan=False)
    read = Result.from_json(json.loads(text))
    assert read.failure is not None
    assert str(read.failure) == str(failure)
    assert read.failure.property == property
    assert str(read.failure.seen) == str(seen)
    assert dataclasses.replace(read, failure=None) == dataclasses.replace(result, failure=None)
    assert read.as_json() == result.as_json()


def test_the_parent_imports_no_torch() -> None:
    source = (
        "import sys\n"
        "from polyattn.cli import main\n"
        "sys.argv = ['polyattn', 'check', 'core/alibi', '--json']\n"
        "main.run()\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[0]["good"]


def test_planning_does_not_import_the_compiler() -> None:
    source = (
        "import sys\n"
        "from polyattn.testing.doors.entrances import open_any\n"
        "assert 'torch._dynamo.convert_frame' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_worker_that_is_dead_is_closed_before_another_takes_its_place() -> None:
    with Suite((sys.executable, "-c", "")) as suite:
        first = suite._worker
        assert first is not None
        first._process.wait()
        second = suite._started()
        assert second is not first
        assert first._errors.closed
