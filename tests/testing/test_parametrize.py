"""Checks as pytest tests: by a decorator in a test file, and by ``--polyattn`` without one."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.testing.broken_maps import PlainGate
from tests.testing.correct import Plain

from polyattn.errors import ConfigError, UnknownName, Unsupported
from polyattn.testing import CheckFailure, parametrize_with_checks, subjects_of_class
from polyattn.testing.parametrize import Case, cases_of
from polyattn.testing.planned import Check, withheld
from polyattn.testing.results import Mismatch, Property, Seen, Status
from polyattn.testing.tools.devices import Place, place_of
from polyattn.testing.tools.tracebacks import told

PART = "core/alibi"
ROOT = Path(__file__).parents[2]


def case(outcome: type[Exception] | Exception | None, reason: str = "", **rest: object) -> Case:
    def run() -> None:
        if outcome is not None:
            raise outcome

    return Case("it", Check(id="check_it[x]", run=run, **rest), reason)  # type: ignore[arg-type]


WRONG = CheckFailure("check_it", Property(meaning="It is so.", causes=()), Seen(what="it is not"))


def test_a_case_passes_fails_or_is_skipped_with_its_reason() -> None:
    case(None)()
    with pytest.raises(CheckFailure, match="it is not"):
        case(WRONG)()
    with pytest.raises(KeyError):
        case(KeyError("planted"))()
    with pytest.raises(pytest.skip.Exception, match="it is not"):
        case(WRONG, reports=True)()
    held = withheld(test_a_case_passes_fails_or_is_skipped_with_its_reason, Status.NOT_RUN, "no")
    with pytest.raises(pytest.skip.Exception, match="no"):
        Case("it", held)()


def test_only_a_property_that_does_not_hold_is_an_expected_failure() -> None:
    assert case(WRONG).marks == []
    (mark,) = case(WRONG, "known").marks
    assert mark.mark.kwargs == {"reason": "known", "raises": CheckFailure, "strict": True}
    assert not issubclass(Mismatch, CheckFailure)


def test_each_check_is_one_test_under_its_name() -> None:
    ids = [x.id for x in cases_of([PART])]
    assert all(id.startswith(f"{PART}-check_") for id in ids)
    assert len(set(ids)) == len(ids) > 5


def test_what_is_not_claimed_is_left_out_and_what_takes_seconds_is_asked_for() -> None:
    subject = subjects_of_class("plain", Plain)[""]
    plain, extended = (cases_of([subject], extended=extended) for extended in (False, True))
    assert not [x for x in extended if x.check.withheld is Status.NOT_CLAIMED]
    assert {x.check.name for x in extended} - {x.check.name for x in plain} >= {"check_compile"}


@pytest.mark.parametrize("prefix", ["", "core/alibi-"])
def test_an_expected_failure_is_named_with_or_without_its_variant(prefix: str) -> None:
    first = cases_of([PART])[0].check.id
    (marked,) = [x for x in cases_of([PART], {prefix + first: "known"}) if x.reason]
    assert (marked.check.id, marked.reason) == (first, "known")


@pytest.mark.parametrize("id", ["check_gone", "core/alibi-check_gone", "chek"])
def test_a_stale_id_is_an_error_when_tests_are_collected(id: str) -> None:
    with pytest.raises(ConfigError, match=id):
        parametrize_with_checks([PART], expected_failures={id: "old"})


def test_an_expected_failure_of_what_is_not_claimed_is_an_error() -> None:
    subject = subjects_of_class("gate", PlainGate)[""]
    told = r"gate-check_fm_export: expected to fail \(old\) and is not claimed: exports"
    with pytest.raises(ConfigError, match=told):
        cases_of([subject], {"check_fm_export": "old"})
    with pytest.raises(AssertionError, match=r"it-check_it\[x\]: expected to fail") as raised:
        case(Unsupported("it", []), "known", may_refuse=True)()
    assert not isinstance(raised.value, CheckFailure)


def test_a_wrong_name_is_an_error_and_one_string_is_no_list() -> None:
    with pytest.raises(UnknownName, match="sofmax"):
        parametrize_with_checks(["sofmax"])
    with pytest.raises(ConfigError, match=r"expected a list, as \['se'\]"):
        parametrize_with_checks("se")


def test_where_there_is_no_such_device_one_test_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)

    @parametrize_with_checks([PART], device="cuda")
    def test(check: object) -> None: ...

    (mark,) = test.pytestmark  # type: ignore[attr-defined]
    ((parameter),) = mark.args[1]
    assert [m.kwargs["reason"] for m in parameter.marks] == ["there is no cuda device here"]


def run(*arguments: str) -> int:
    return int(pytest.main(["-p", "no:cacheprovider", "-p", "no:randomly", *arguments]))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a test file that fails, and a subfolder of it to be in."""
    (tmp_path / "test_beside.py").write_text("def test_beside(): assert False")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_name_is_checked_without_a_file_and_no_other_test_is_run(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--polyattn", PART, "-q") == 0
    count = len(cases_of([PART]))
    assert f"{count} passed" in capsys.readouterr().out
    assert run("--polyattn", PART, "test_beside.py", "-q") == 1
    assert f"1 failed, {count} passed" in capsys.readouterr().out


def test_names_are_repeated_or_separated_by_commas_and_k_chooses(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(f"--polyattn={PART},core/rope", "--polyattn=core/count", "--collect-only", "-q") == 0
    out = capsys.readouterr().out
    for name in (PART, "core/rope", "core/count"):
        assert f"polyattn/{name}::check_" in out
    only = cases_of([PART])[0].check.name
    chosen = sum(case.check.name == only for case in cases_of([PART]))
    assert run("--polyattn", PART, "-k", only, "--collect-only", "-q") == 0
    assert f"{chosen}/{len(cases_of([PART]))} tests collected" in capsys.readouterr().out


def test_expected_failures_come_from_a_file_and_a_healed_one_fails(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known = cases_of([PART])[0].check.id
    (folder / "expected.yaml").write_text(f'"{known}": was wrong once\n')
    assert run("--polyattn", PART, "--polyattn-expected", "expected.yaml", "-q") == 1
    assert "[XPASS(strict)] was wrong once" in capsys.readouterr().out
    (folder / "expected.yaml").write_text("check_gone: was wrong once\n")
    assert run("--polyattn", PART, "--polyattn-expected", "expected.yaml", "-q") == 4


def test_a_printed_id_is_run_again_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--polyattn", PART, "--collect-only", "-q") == 0
    ids = [x for x in capsys.readouterr().out.splitlines() if x.startswith("polyattn/")]
    assert len(ids) == len(cases_of([PART]))
    with_parameters = next(id for id in ids if "[" in id)
    for arguments in (("--polyattn", PART, with_parameters), (with_parameters,)):
        assert run(*arguments, "-v") == 0
        out = capsys.readouterr().out
        assert f"{with_parameters} PASSED" in out
        assert "1 passed" in out
    (folder / "test_with_ids.py").write_text("def test_beside(): assert False")
    assert run(with_parameters, "test_with_ids.py", "-q") == 1
    assert "1 failed, 1 passed" in capsys.readouterr().out
    assert run(ids[0], "--polyattn", "core/count", "-q") == 0
    assert f"{1 + len(cases_of(['core/count']))} passed" in capsys.readouterr().out
    by_name = with_parameters.partition("[")[0]
    alike = sum(id.partition("[")[0] == by_name for id in ids)
    assert alike > 1
    assert run(by_name, "-q") == 0
    assert f"{alike} passed" in capsys.readouterr().out


def test_an_id_that_takes_seconds_is_run_when_it_is_asked_for(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = [x.check.id for x in cases_of(["se"], extended=True) if x.check.extended]
    assert slow
    assert run(f"polyattn/se::{slow[0]}", "--collect-only", "-q") == 0
    assert f"polyattn/se::{slow[0]}" in capsys.readouterr().out


def test_a_printed_id_is_understood_by_workers_too(folder: Path) -> None:
    id = f"polyattn/{PART}::{cases_of([PART])[0].check.id}"
    command = [sys.executable, "-m", "pytest", "-n", "1", "-p", "no:cacheprovider", id]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


BREAKING = """
from tests.testing.correct import Plain

import polyattn.testing.pytest_plugin as plugin
from polyattn.testing import parametrize, subjects_of_class


def deep(v):
    raise ZeroDivisionError("planted")


class Raises(Plain):
    def attend(self, q, k, v, mask, inputs):
        return deep(v)


class Wrong(Plain):
    def attend(self, q, k, v, mask, inputs):
        return super().attend(q, k, v, mask, inputs) * 1.01


KINDS = {"raises": Raises, "wrong": Wrong}
cases_of = parametrize.cases_of
subjects = {name: subjects_of_class(name, kind)[""] for name, kind in KINDS.items()}
parametrize.cases_of = lambda names, *a, **k: cases_of([subjects[x] for x in names], *a, **k)
plugin._look_for = lambda name: subjects[name]
"""
"""A conftest with two classes of strangers, to be asked for as if they were registered."""


@pytest.mark.parametrize("kind", ["raises", "wrong"])
def test_the_line_at_the_end_of_a_failure_runs_it_again(folder: Path, kind: str) -> None:
    (folder / "strange.py").write_text(BREAKING)
    quiet = ["-p", "no:cacheprovider", "-p", "strange", "--rootdir", str(folder)]
    command = [sys.executable, "-m", "pytest", *quiet]

    def told(*arguments: str) -> str:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
        done = subprocess.run(
            [*command, *arguments], capture_output=True, text=True, cwd=folder, env=env
        )
        assert done.returncode == 1, done.stdout + done.stderr
        return done.stdout

    first = told("--polyattn", kind, "-k", "check_matches_reference", "--maxfail=1")
    # With CI in the environment pytest repeats the whole message in its summary.
    (line,) = set(re.findall(r"^run it again: pytest (.+)$", first, re.MULTILINE))
    again = told(*shlex.split(line))
    assert line in again
    assert "1 failed" in again
    assert "passed" not in again
    for out in (first, again):
        assert "usual causes:" in out
        assert ("in deep" in out) == (kind == "raises")
        for internal in ("runner.py", "results.py", "sequence.py", "parametrize.py", "_pytest"):
            assert internal not in out, out
    assert "runner.py" in told("--full-trace", *shlex.split(line))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--polyattn", "sofmax"), "did you mean 'softmax'"),
        (("--polyattn", "core/ropes"), "did you mean 'core/rope'"),
        (("--polyattn", "core/nosuch"), "no part of the framework is called 'core/nosuch'"),
        (("--polyattn", ""), "expected a name, got an empty one"),
        (("--polyattn-extended",), "--polyattn NAME says of what"),
        (("--polyattn", "se", "--polyattn-expected", "none.yaml"), "none.yaml: expected a YAML"),
        (("polyattn/core/alibi::check_alibi_slope",), "no such check, did you mean 'check_alibi_s"),
        (("polyattn/core/alibi::check_x",), "no such check; --polyattn core/alibi --collect-only"),
        (("polyattn/sofmax::check_x",), "did you mean 'softmax'"),
        (("polyattn/test_gone.py::test_x",), "file or directory not found"),
    ],
)
def test_a_wrong_question_is_a_usage_error(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    assert run(*arguments) == 4
    told = capsys.readouterr()
    assert words in told.err + told.out
    assert "Traceback" not in told.err + told.out


def test_a_failure_is_shown_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "test_it.py").write_text(
        "from polyattn.testing import parametrize_with_checks, subjects_of_class\n"
        "from tests.testing.broken_maps import PlainGate\n"
        "class Doubles(PlainGate):\n"
        "    def gated(self, x, gate): return 2 * x * gate\n"
        "subjects = list(subjects_of_class('doubles', Doubles).values())\n"
        "@parametrize_with_checks(subjects)\n"
        "def test_conformance(check): check()\n"
    )
    assert run("test_it.py", "-q", "-k", "check_fm_matches_reference", "-x") == 1
    out = capsys.readouterr().out
    assert "test_conformance[doubles-check_fm_matches_reference[" in out
    assert "usual causes:" in out
    assert "runner.py" not in out


def test_by_the_decorator_the_traceback_begins_in_the_code_that_raised(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "test_raising.py").write_text(
        "from polyattn.testing import parametrize_with_checks, subjects_of_class\n"
        "from tests.testing.correct import Plain\n"
        "def deep(v): raise ZeroDivisionError('planted')\n"
        "class Raises(Plain):\n"
        "    def attend(self, q, k, v, mask, inputs): return deep(v)\n"
        "subjects = list(subjects_of_class('raises', Raises).values())\n"
        "@parametrize_with_checks(subjects)\n"
        "def test_conformance(check): check()\n"
    )
    assert run("test_raising.py", "-q", "-k", "check_matches_reference", "-x") == 1
    out = capsys.readouterr().out
    assert "def deep(v): raise ZeroDivisionError('planted')" in out
    assert "it raised ZeroDivisionError: planted" in out
    for internal in ("runner.py", "results.py", "sequence.py", "parametrize.py"):
        assert internal not in out, out
    id = re.findall(r"^FAILED (\S+)", out, re.MULTILINE)[0]
    assert run(id, "-q") == 1
    assert "1 failed" in capsys.readouterr().out


def raised(action: Callable[[], object]) -> BaseException:
    try:
        action()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def test_what_the_suite_raised_itself_keeps_its_traceback() -> None:
    of_the_suite = raised(lambda: place_of("tpu"))
    assert "devices.py" in told(of_the_suite)
    through_the_suite = raised(lambda: Place().call(lambda: {}["planted"]))
    assert "KeyError: 'planted'" in told(through_the_suite)
    assert "devices.py" not in told(through_the_suite)


def test_pytest_alone_imports_no_torch(folder: Path) -> None:
    source = (
        "import pytest, sys\n"
        "assert pytest.main(['--collect-only', '-q', 'test_beside.py']) == 0\n"
        "assert 'polyattn.testing.pytest_plugin' in sys.modules\n"
        "assert not {'torch', 'pydantic'} & sys.modules.keys()\n"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
