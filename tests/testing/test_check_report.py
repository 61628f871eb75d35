"""What ``polyattn check`` says, and its ways to be asked, beside what test_cli_check has."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.measure import planted
from tests.testing.test_cli_check import polyattn

from polyattn.cli import compare, tables
from polyattn.cli import list as list_command
from polyattn.cli.check_report import Report
from polyattn.cli.printable import printable
from polyattn.errors import ConfigError
from polyattn.measure.worker import WorkerFailed
from polyattn.testing.process.worker import Job, Listener, Suite
from polyattn.testing.results import (
    CheckFailure,
    Property,
    Result,
    Seen,
    Status,
    expected_of,
    read_expected,
)

PART = "core/alibi"


def failed(id: str, follows: str = "") -> Result:
    name = id.partition("[")[0]
    seen = Seen(what=f"{id} does not hold", given="q (1, 2, 3, 4), float64, seed 0")
    failure = CheckFailure(name, Property(meaning=f"{name} is so.", causes=("a slip",)), seen)
    reason = seen.what
    return Result(id=id, status=Status.FAILED, reason=reason, failure=failure, follows=follows)


def told(capsys: pytest.CaptureFixture[str], *results: Result, brief: bool = False) -> str:
    report = Report("it", brief=brief)
    for result in results:
        report.hear(result)
    report.conclude("the verdict")
    return capsys.readouterr().out


def test_what_follows_from_another_failure_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    out = told(
        capsys,
        failed("check_root"),
        failed("check_b[1]", "check_root"),
        failed("check_b[2]", "check_root"),
        failed("check_c", "check_root"),
        failed("check_other"),
    )
    assert "3 more follow from check_root: check_b, check_c" in out
    for id in ("check_root", "check_other"):
        assert out.count(f"FAILED {id}\n") == 1
    assert "FAILED check_b" not in out
    assert "also failed" not in out
    assert out.endswith("it: the verdict\n")


def test_what_follows_from_what_did_not_fail_is_explained(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = told(capsys, failed("check_a"), failed("check_b", "check_root"))
    assert "FAILED check_b\n" in out
    assert "more" not in out


def test_the_first_failure_is_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report("it")
    report.hear(failed("check_a"))
    out = capsys.readouterr().out
    for words in ("FAILED check_a", "check_a is so.", "seed 0", "a slip", "switched off by"):
        assert words in out


def test_a_failure_ends_with_the_command_that_runs_it_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = Report("it", again=lambda id: f"polyattn check it --only {id}")
    report.hear(failed("check_a"))
    report.hear(failed("check_b"))
    report.conclude("")
    lines = capsys.readouterr().out.splitlines()
    for id in ("check_a", "check_b"):
        at = lines.index(f"FAILED {id}")
        told = lines[at + 1 : lines.index("", at)]
        assert told[-1] == f"  run it again: polyattn check it --only {id}"


def test_inputs_that_can_be_made_again_are_a_line_of_python(
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = failed("check_a")
    assert result.failure is not None
    given = "q (1, 2, 3, 4), k (1, 2, 3, 4), v (1, 2, 3, 4), float64, mask full, seed 3, in chunks"
    seen = Seen(what="it is so", given=given)
    failure = CheckFailure("check_a", result.failure.property, seen)
    Report("it").hear(dataclasses.replace(result, failure=failure))
    (line,) = [x for x in capsys.readouterr().out.splitlines() if "its inputs: " in x]
    names: dict[str, Any] = {}
    exec(line.partition("its inputs: ")[2], names)
    assert names["q"].shape == (1, 2, 3, 4)


def test_any_text_can_be_shown(capsys: pytest.CaptureFixture[str]) -> None:
    Report("it").say("a lone \udc80 surrogate")
    assert "\\udc80" in capsys.readouterr().out


def test_expected_failures_are_those_of_a_name_or_of_all() -> None:
    given = {"check_a": "x", "se-check_b": "y", "linear-check_c": "z"}
    assert expected_of("se", given) == {"check_a": "x", "check_b": "y"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- check_a", "expected {id: reason}, got a list"),
        ("check_a:", "check_a: expected a reason in words"),
        ("check_a: 3", "got 3"),
    ],
)
def test_a_file_of_expected_failures_needs_reasons(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "expected.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as raised:
        read_expected(path)
    assert words in str(raised.value)
    path.write_text("")
    assert read_expected(path) == {}


def test_a_healed_one_fails_the_run_and_a_stale_one_is_a_wrong_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "expected.yaml"
    path.write_text('"check_alibi_slopes[heads1]": was wrong once\n')
    assert polyattn(monkeypatch, "check", PART, "--expected", str(path), "--json") == 1
    (report,) = json.loads(capsys.readouterr().out)
    bad = [row for row in report["results"] if row["status"] == "unexpectedly passed"]
    assert [row["id"] for row in bad] == ["check_alibi_slopes[heads1]"]
    path.write_text("check_gone: was wrong once\n")
    monkeypatch.setattr("polyattn.cli.check_session.everything", lambda _: [PART])
    assert polyattn(monkeypatch, "check", "--all", "--expected", str(path)) == 2
    assert "check_gone" in capsys.readouterr().err


def all_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, names: list[str], *expected: str
) -> int:
    """The exit code of a check of these names that expects these failures, as data."""
    path = tmp_path / "expected.yaml"
    path.write_text("".join(f'"{id}": was wrong once\n' for id in expected))
    monkeypatch.setattr("polyattn.cli.check_session.everything", lambda _: names)
    return polyattn(monkeypatch, "check", "--all", "--expected", str(path), "--json")


def test_a_stale_one_among_many_leaves_one_document_with_what_was_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert all_of(monkeypatch, tmp_path, [PART], "check_gone") == 2
    done, problem = json.loads(capsys.readouterr().out)
    assert done["name"] == PART
    assert done["results"]
    assert "check_gone" in problem["problem"]


def test_what_may_be_of_a_name_that_could_not_be_used_is_not_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [PART, "nothing_of_the_kind"]
    unknown = ("nothing_of_the_kind-check_a", "check_b")
    assert all_of(monkeypatch, tmp_path, names, *unknown) == 1
    assert [row["good"] for row in json.loads(capsys.readouterr().out)] == [True, False]
    assert all_of(monkeypatch, tmp_path, names, *unknown, f"{PART}-check_gone") == 2
    problem = json.loads(capsys.readouterr().out)[-1]["problem"]
    assert f"['{PART}-check_gone']" in problem


def test_after_an_interruption_no_expected_failure_is_called_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usual = Suite.run

    def run(self: Suite, job: Job, listener: Listener) -> None:
        if job.target != PART:
            raise KeyboardInterrupt
        usual(self, job, listener)

    monkeypatch.setattr(Suite, "run", run)
    late = ("core/rope-check_a", f"{PART}-check_gone")
    assert all_of(monkeypatch, tmp_path, [PART, "core/rope", "core/mask"], *late) == 130
    first, second = json.loads(capsys.readouterr().out)
    assert first["good"]
    assert second["problem"] == "interrupted"


def test_an_error_is_data_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert polyattn(monkeypatch, "check", "nothing_of_the_kind", "--json") == 2
    heard = capsys.readouterr()
    (report,) = json.loads(heard.out)
    assert report["problem"].startswith("unknown name")
    assert not report["good"]
    assert heard.err.count("\n") == 1


def test_a_device_that_is_asked_for_and_missing_is_a_wrong_question(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert polyattn(monkeypatch, "check", "se", "--device", "cuda") == 2
    heard = capsys.readouterr()
    asked, here, way_out = heard.err.removeprefix("error: ").strip().split("; ")
    assert asked == "--device cuda: there is none here"
    assert here == "this machine has cpu"
    assert way_out.startswith("leave --device out")
    assert polyattn(monkeypatch, "check", "se", "--device", "tpu") == 2


def test_where_there_is_no_gpu_all_says_so_and_exits_0(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("polyattn.cli.check_session.everything", lambda _: [PART])
    assert polyattn(monkeypatch, "check", "--all") == 0
    assert "cuda: there is none here" in capsys.readouterr().out


@pytest.mark.parametrize("as_json", [True, False])
def test_where_the_suite_fails_in_the_middle_what_there_is_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    def run(self: Suite, job: Job, listener: Listener) -> None:
        listener.plan(("check_a", "check_b"))
        listener.hear(failed("check_a"))
        raise WorkerFailed("the planted fault")

    monkeypatch.setattr(Suite, "run", run)
    assert polyattn(monkeypatch, "check", PART, *(["--json"] if as_json else [])) == 2
    told = capsys.readouterr()
    assert told.err == "error: the planted fault\n"
    if not as_json:
        assert "FAILED check_a" in told.out
        assert f"{PART}: 1 failed in " in told.out
        return
    (report,) = json.loads(told.out)
    assert (report["name"], report["problem"]) == (PART, "the planted fault")
    assert [row["id"] for row in report["results"]] == ["check_a"]


HOSTILE = "\x1b[2J\x1b]0;pwned\x07 \x9b1m \u202e \ud800 a\tb\nc"
SHOWN = r"\x1b[2J\x1b]0;pwned\x07 \x9b1m \u202e \ud800 a" + "\tb\nc"


def test_what_would_steer_a_terminal_is_written_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert printable(HOSTILE) == SHOWN
    wrong = dataclasses.replace(failed("check_a"), reason=HOSTILE.splitlines()[0], failure=None)
    out = told(capsys, wrong)
    assert SHOWN.splitlines()[0] in out
    assert "\x1b" not in out


def test_nor_does_a_table_or_an_error_steer_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tables.show(tables.console(), ("name", "what it is"), [("x", "\x1b[2J\x07")])
    assert r"x     \x1b[2J\x07" in capsys.readouterr().out
    assert polyattn(monkeypatch, "check", "\x1b[2Jx") == 2
    assert "\x1b" not in capsys.readouterr().err


def test_what_a_plugin_that_failed_says_does_not_steer_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    entry = SimpleNamespace(label="p:q", reason="\x1b[2J")
    list_command._print(SimpleNamespace(entries=(), unavailable=(entry,)))  # type: ignore[arg-type]
    assert capsys.readouterr().out == "failed: p:q: \\x1b[2J\n"


def test_nor_does_the_reason_why_one_could_not_be_measured(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = planted.comparison(failures={"fast": "it raised \x1b[2J"})  # type: ignore[no-untyped-call]
    compare._tell(found, "written", ("fast",))
    out = capsys.readouterr().out
    assert "could be measured: fast: it raised \\x1b[2J" in out
    assert "\x1b" not in out
