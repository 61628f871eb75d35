"""Code that exits, raises anything, hangs or is no Python: a verdict, never a traceback."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from tests.testing.correct import Plain

from polyattn.cli import main
from polyattn.cli.check_report import Report
from polyattn.errors import ConfigError
from polyattn.testing import check_class, subjects_of_class
from polyattn.testing.doors.load import load_thing, look_for
from polyattn.testing.planned import Check
from polyattn.testing.process.contained import Escaped, TimeUp, contained, limited
from polyattn.testing.process.jobs import Plan
from polyattn.testing.process.worker import Job, Suite
from polyattn.testing.results import Status
from polyattn.testing.tools.cases import SQUARE

HOSTILE = """
import sys
import torch.nn.functional as F

def exits(q, k, v): sys.exit(0)

def exits_late(q, k, v):
    if q.shape[1] == 3: sys.exit(0)
    return F.scaled_dot_product_attention(q, k, v)

def raises_anything(q, k, v): raise BaseException("x")

def interrupts(q, k, v): raise KeyboardInterrupt

def hangs(q, k, v):
    while True: pass

def hangs_late(q, k, v):
    if q.shape[1] == 3:
        while True: pass
    return F.scaled_dot_product_attention(q, k, v)

def once(q, k, v, seen=[]):
    seen.append(1)
    if len(seen) > 1: raise RuntimeError("only once")
    return F.scaled_dot_product_attention(q, k, v)

class Exits:
    def __init__(self): sys.exit(0)
    def __call__(self, q, k, v): return v

def flagged(q, k, v, is_causal=False):
    return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
"""


@pytest.fixture
def check(tmp_path, monkeypatch, capsys):
    (tmp_path / "f.py").write_text(HOSTILE)
    monkeypatch.chdir(tmp_path)

    def run(name, *more):
        monkeypatch.setattr("sys.argv", ["polyattn", "check", name, "--as", "sdpa", *more])
        try:
            main.run()
        except SystemExit as end:
            return end.code or 0, *capsys.readouterr()
        return 0, *capsys.readouterr()

    return run


@pytest.fixture(scope="module")
def suite():
    with Suite() as suite:
        yield suite


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("exits", "it raised SystemExit: 0"),
        ("exits_late", "it raised SystemExit: 0"),
        ("raises_anything", "it raised BaseException: x"),
        ("once", "RuntimeError: only once"),
        ("Exits", "without arguments raised SystemExit: 0"),
        ("interrupts", "it raised KeyboardInterrupt"),
    ],
)
def test_whatever_it_raises_is_a_failed_result(suite, tmp_path, name, said):
    (tmp_path / "f.py").write_text(HOSTILE)
    report = Report(name, silent=True)
    suite.run(Job(target=f"{tmp_path}/f.py:{name}", door="sdpa"), report)
    assert said in str([x.reason for x in report.results if x.status is Status.FAILED])


@pytest.mark.parametrize("name", ["f.py:hangs", "endless.py:f"])
def test_what_never_answers_is_one_failed_result_under_its_name(check, tmp_path, monkeypatch, name):
    (tmp_path / "endless.py").write_text("while True: pass")
    monkeypatch.setattr("polyattn.cli.check.PATIENCE", 0.5)
    code, out, _ = check(name)
    assert code == 1
    assert out.startswith(name)
    assert "it did not answer within 0.5 s" in out
    assert "1 failed in" in out


def test_a_check_that_never_ends_fails_and_the_rest_is_not_run(check, monkeypatch):
    monkeypatch.setattr("polyattn.cli.check.PATIENCE", 1.0)
    code, out, _ = check("f.py:hangs_late", "--json")
    results = json.loads(out)[0]["results"]
    assert code == 1
    failed = [row for row in results if row["status"] == "failed"]
    assert [row["reason"] for row in failed] == ["it did not answer within 1 s"]
    assert results[-1]["status"] == "not run"


def test_ctrl_c_ends_a_check_with_130(tmp_path):
    (tmp_path / "f.py").write_text(HOSTILE)
    command = [sys.executable, "-m", "polyattn.cli.main", "check", "f.py:hangs", "--as", "sdpa"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "f.py:hangs\n"
    time.sleep(4)
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == "f.py:hangs: interrupted\n"
    assert error == ""


def test_an_argument_that_is_not_there_is_one_finding(check):
    code, out, _ = check("f.py:flagged", "--mask-arg", "nope", "--json")
    bad = [row for row in json.loads(out)[0]["results"] if row["status"] in ("failed", "error")]
    assert code == 1
    assert [row["id"] for row in bad] == ["check_mask_polarity_and_dtype[mask argument]"]
    assert "AssertionError" not in out


def test_a_function_with_a_causal_flag_alone_is_right(check):
    code, out, _ = check("f.py:flagged")
    assert code == 0, out


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (b"def f(:\n", "syntax error in line 1"),
        (b"x = '\xff'\n", "expected UTF-8"),
        (b"x = 1\0\n", "NUL bytes"),
    ],
)
def test_a_file_that_is_no_python_is_a_wrong_question(check, tmp_path: Path, source, said):
    (tmp_path / "wrong.py").write_bytes(source)
    code, _, error = check("wrong.py:f")
    assert code == 2
    assert said in error
    assert error.count("\n") == 1


def test_only_exceptions_get_out_and_the_users_own_interruption():
    with pytest.raises(Escaped, match="7"), contained():
        sys.exit(7)
    with pytest.raises(ValueError, match="x"), contained():
        raise ValueError("x")
    with pytest.raises(KeyboardInterrupt), contained():
        signal.raise_signal(signal.SIGINT)


def test_an_interruption_that_the_code_raises_is_its_own():
    with pytest.raises(Escaped, match="mine"), contained():
        raise KeyboardInterrupt("mine")


def test_an_interruption_by_the_user_is_one_whatever_the_code_makes_of_it():
    def disguise():
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise SystemExit from None

    with pytest.raises(KeyboardInterrupt), contained():
        disguise()


@pytest.mark.parametrize("raised", [SystemExit, KeyboardInterrupt, BaseException, ValueError])
@pytest.mark.parametrize("where", ["examples", "build", "capabilities_for"])
def test_whatever_a_class_raises_while_it_is_built_is_one_failed_result(raised, where):
    def raises(*given):
        raise raised("planted")

    broken = type("Broken", (Plain,), {where: raises if where == "build" else staticmethod(raises)})
    results = check_class(broken, on_fail="collect")
    assert [(x.name, x.status) for x in results] == [("check_can_be_built", Status.FAILED)]
    assert f"it raised {raised.__name__}: planted" in results[0].reason


def test_a_limit_ends_with_its_block_and_leaves_an_outer_one_alone():
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(TimeUp, match=r"within 0\.2 s"), limited(0.2), limited(100.0):
        time.sleep(5)
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
    assert signal.getsignal(signal.SIGALRM) is before


@pytest.mark.parametrize("name", ["check_can_be_built[defaults]", "check_thing_loads"])
def test_that_nothing_could_be_built_is_never_left_out_by_only(name):
    def ready(id):
        return Check(id, run=lambda: None)

    def run(checks, *only):
        plan = Plan(checks, (), lambda check, results: "", lambda results: "")
        return [x.id for x in plan.of(only).checks if x.withheld is None]

    assert run([ready(name)], "check_output_shape") == [name]
    assert run([ready(name), ready("check_a"), ready("check_b")], "check_a") == [name, "check_a"]
    for there in ([ready("check_a")], [ready(name), ready("check_a")], []):
        with pytest.raises(ConfigError, match="no such check"):
            run(there, "check_output_shape")


@pytest.mark.parametrize(
    ("made", "problem"),
    [
        ("None", "changed sys.path"),
        ("['/nowhere']", "changed sys.path"),
        ("['/nowhere', *sys.path]", ""),
        ("type('Odd', (list,), {'__contains__': lambda *given: True})(sys.path)", ""),
    ],
)
def test_a_file_that_replaces_the_search_path_is_told_so_and_the_next_one_loads(
    tmp_path, monkeypatch, made, problem
):
    monkeypatch.setattr("sys.path", list(sys.path))
    before = sys.path
    (tmp_path / "replaces.py").write_text(f"import sys\nsys.path = {made}\ndef f(q, k, v): ...\n")
    (tmp_path / "after.py").write_text("def f(q, k, v): ...\n")
    told = load_thing(f"{tmp_path}/replaces.py:f").problem
    assert told.endswith(problem)
    assert bool(told) == bool(problem)
    assert sys.path is before
    assert load_thing(f"{tmp_path}/after.py:f").problem == ""


@pytest.mark.parametrize(
    ("name", "source", "said"),
    [
        ("deep.py", "f = " + "-" * 200_000 + "1", "nested too deeply"),
        ("dots.py", "f = x" + ".a" * 200_000, "nested too deeply"),
        ("n" * 300 + ".py", None, "cannot be read: File name too long"),
    ],
)
@pytest.mark.parametrize("ask", [look_for, load_thing])
def test_an_odd_file_is_a_wrong_question(tmp_path, ask, name, source, said):
    if source is not None:
        (tmp_path / name).write_text(source)
    with pytest.raises(ConfigError, match=said):
        ask(f"{tmp_path}/{name}:f")


def test_the_shape_that_is_expected_is_that_of_the_inputs_before_the_call():
    class Empties(Plain):
        def forward(self, q, *others):
            out = super().forward(q, *others)
            q.data = torch.zeros(0)
            return out

    subject = subjects_of_class("Empties", Empties)[""]
    sample = subject.draw(SQUARE)
    shape = (*sample.q.shape[:3], sample.v.shape[3])
    assert tuple(subject.at(SQUARE)(sample).shape) == shape
