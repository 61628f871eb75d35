"""``polyattn check``: exit codes, one line per property, failures in full, data with --json."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from polyattn.cli import main

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
