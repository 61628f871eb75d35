"""``polyattn check``: exit codes, one line per property, failures in full, data with --json."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from polyattn.cli import main
from polyattn.cli.check import PATIENCE
from polyattn.cli.check_question import Question
from polyattn.cli.check_report import Report
from polyattn.cli.check_session import Session
from polyattn.testing.process.worker import Job
from polyattn.testing.results import Result, Status

THINGS = Path(__file__).with_name("things.py")


def polyattn(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["polyattn", *arguments])
    try:
        main.run()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_what_holds_exits_0(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert polyattn(monkeypatch, "check", "se") == 0
    out = capsys.readouterr().out
    assert "passed       check_fm_matches_reference (" in out
    assert "FAILED" not in out


def test_what_fails_exits_1_and_is_explained(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert polyattn(monkeypatch, "check", f"{THINGS}:without_scale", "--as", "sdpa") == 1
    out = capsys.readouterr().out
    for words in ("FAILED check_matches_reference", "fix this first: ", "write:", "seen:"):
        assert words in out
    assert re.search(r"^not claimed  \d+ checks: no decoding state is claimed$", out, re.MULTILINE)


def test_a_model_that_sees_both_ways_can_be_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    target = f"{THINGS.with_name('things_models.py')}:SeesAll"
    assert polyattn(monkeypatch, "check", target, "--as", "lm") == 1
    assert polyattn(monkeypatch, "check", target, "--as", "lm", "--not-causal") == 0


def test_json_is_data(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert polyattn(monkeypatch, "check", f"{THINGS}:prints", "--as", "sdpa", "--json") == 1
    report = json.loads(capsys.readouterr().out)[0]
    failed = [row for row in report["results"] if row["status"] == "failed"]
    assert [row["id"] for row in failed] == ["check_global_state_untouched"]
    assert failed[0]["failure"]["causes"]


def test_one_that_cannot_be_used_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["nothing_of_the_kind", "core/alibi"]
    monkeypatch.setattr("polyattn.cli.check_session.everything", lambda _: names)
    assert polyattn(monkeypatch, "check", "--all") == 1
    told = capsys.readouterr()
    assert "nothing_of_the_kind: cannot be checked: unknown name" in told.out
    title, first, second = told.out.splitlines()[-3:]
    assert title.split() == ["name", "passed", "failed", "not", "claimed", "not", "run", "seconds"]
    assert first.split()[:3] == ["nothing_of_the_kind", "0", "0"]
    assert second.split()[0] == "core/alibi"
    assert int(second.split()[1]) > 5
    assert "core/alibi: 1 checks" not in told.out
    assert "core/alibi" in told.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "expected one name"),
        (("se", "--all"), "expected one name"),
        (("nothing_of_the_kind",), "unknown name"),
        ((f"{THINGS}:bare",), "Add --as sdpa"),
        ((f"{THINGS}:bare",), "--as module for x (B, S, E), --as lm for ids"),
        ((f"{THINGS}:bare", "--as", "cuda"), "expected one of sdpa"),
        ((f"{THINGS}:bare", "--as", "sdpa", "--true-means", "yes"), "expected attend or mask"),
        (("se", "--causal"), "--causal belongs to code from elsewhere"),
        (("se", "--causal", "--width", "8"), "--width, --causal belong to code from elsewhere"),
        (("--all", "--as", "sdpa"), "check --all: --as sdpa: expected what is registered alone"),
        (("--all", "--causal"), "check --all: --causal: expected what is registered alone"),
        (("nowhere.py:thing", "--as", "sdpa"), "no such file"),
        ((f"{'a' * 300}.py:thing",), "cannot be read: File name too long"),
    ],
)
def test_a_wrong_question_exits_2_with_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    words: str,
) -> None:
    assert polyattn(monkeypatch, "check", *arguments) == 2
    told = capsys.readouterr()
    assert words in told.err
    assert told.err.count("\n") == 1
    assert "Traceback" not in told.err + told.out


def test_a_folder_whose_name_is_too_long_is_a_wrong_question_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert polyattn(monkeypatch, "new", "quiet_one", "--folder", "a" * 300) == 2
    told = capsys.readouterr().err
    assert "quiet_one cannot be read: File name too long; choose another" in told
    assert told.count("\n") == 1


def cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the time of a job be over before its first check, whatever the machine."""
    usual = Session._job

    def job(self: Session, *arguments: Any) -> Job:
        return dataclasses.replace(usual(self, *arguments), total=0.0)

    monkeypatch.setattr(Session, "_job", job)


@pytest.mark.parametrize(
    ("thing", "door"),
    [("things.py:bare", "sdpa"), ("things_modules.py:Attention", "module")],
)
def test_what_is_cut_short_is_unfinished_and_exits_3(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], thing: str, door: str
) -> None:
    cut_short(monkeypatch)
    asked = ("check", str(THINGS.with_name(thing)), "--as", door)
    assert polyattn(monkeypatch, *asked) == 3
    told = capsys.readouterr().out.splitlines()[-1]
    assert re.search(r": unfinished; \d+ checks were not run \(0 seconds were over\)", told)
    assert "--patience SECONDS" in told
    assert "correct" not in told
    assert "breaks no rule" not in told
    assert polyattn(monkeypatch, *asked, "--json") == 3
    (report,) = json.loads(capsys.readouterr().out)
    assert not report["good"]
    assert report["unfinished"] > 5


def test_what_fails_and_is_cut_short_exits_1_and_says_both(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = [
        Result(id="check_a", status=Status.FAILED, reason="it is wrong"),
        Result(id="check_b", status=Status.NOT_RUN, reason="30 seconds were over"),
    ]
    session = asked_of("it")
    session.reports = [Report("it", silent=True, results=results)]
    assert session._end() == 1
    session.reports = [Report("it", silent=True, results=results[1:])]
    assert session._end() == 3
    session.reports = [Report("it", silent=True, results=[])]
    assert session._end() == 0


def asked_of(target: str, door: str | None = None, patience: float = 7.0) -> Session:
    question = Question(
        target=target,
        every=False,
        door=door,
        wishes={},
        only=(),
        extended=False,
        device=None,
        expected=None,
        patience=patience,
    )
    return Session(question=question, expected={}, as_json=False, patience=patience)


def test_patience_is_the_limit_of_names_and_of_code_from_elsewhere() -> None:
    named = asked_of("se")._job("se", "cpu", {})
    assert (named.each, named.each_extended, named.total) == (7.0, 70.0, None)
    usual = asked_of("se", patience=PATIENCE)._job("se", "cpu", {})
    assert usual == Job(target="se")
    elsewhere = asked_of("f.py:f", "sdpa")._job("f.py:f", "cpu", {})
    assert (elsewhere.opening, elsewhere.each, elsewhere.total) == (7.0, 7.0, 7.0)


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "1e300"])
def test_patience_is_a_number_of_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], seconds: str
) -> None:
    assert polyattn(monkeypatch, "check", "se", f"--patience={seconds}") == 2
    assert f"--patience {float(seconds):g}: expected seconds" in capsys.readouterr().err


def test_patience_is_heard_and_said_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "f.py").write_text("def f(q, k, v):\n    while True: pass\n")
    asked = ("check", f"{tmp_path}/f.py:f", "--as", "sdpa", "--patience", "0.5")
    assert polyattn(monkeypatch, *asked) == 1
    assert "it did not answer within 0.5 s" in capsys.readouterr().out
    again = asked_of("f.py:f", "sdpa").question.again("f.py:f", "cpu", "check_a")
    assert "--patience 7 --only check_a" in again
