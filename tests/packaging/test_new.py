"""What ``polyattn new`` writes: an ordinary package that passes everything as it stands."""

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.environments import ROOT, Environment, borrowing_environment

from polyattn.cli import main
from polyattn.registry import _scan
from polyattn.testing import CheckFailure, run_checks, subjects_of_class
from polyattn.testing.runner import checks_of

PYTHON = sys.executable
KINDS = {"near-by": "sequence", "beside": "feature_map"}
CLASSES = {"near-by": "NearBy", "beside": "Beside"}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one new package of each kind."""
    folder = tmp_path_factory.mktemp("written")
    for name, kind in KINDS.items():
        assert new(name, "--kind", kind, "--folder", str(folder)) == 0
    return folder


@pytest.fixture(scope="module")
def environment(
    wheel: Path, written: Path, tmp_path_factory: pytest.TempPathFactory
) -> Environment:
    made = borrowing_environment(tmp_path_factory.mktemp("new") / "env")
    # The other kind is followed from here to a distribution by tests/test_writing_a_plugin.py.
    made.pip_install(wheel, "-e", written / "beside")
    return made


def new(*arguments: str) -> int:
    """Run the command in this process; its exit code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POLYATTN_REGISTRY", "")
        patch.setattr(sys, "argv", ["polyattn", "new", *arguments])
        _scan.cache_clear()
        try:
            main.run()
        except SystemExit as stop:
            return stop.code if isinstance(stop.code, int) else 0
    return 0


def test_it_passes_the_suite_where_it_is_installed(environment: Environment) -> None:
    done = environment.run("polyattn", "check", "beside")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed       check_fm_matches_reference" in done.stdout


def test_its_own_test_passes(environment: Environment, written: Path) -> None:
    pytest_quietly = ["python", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = environment.run(*pytest_quietly, written / "beside" / "tests")
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


def test_it_is_well_typed_and_formatted(written: Path) -> None:
    # With the settings and the cache of `make check`, which has read torch already.
    sources = [str(written / name / "src") for name in KINDS]
    typed = subprocess.run(
        [PYTHON, "-m", "mypy", *sources, *(str(written / name / "tests") for name in KINDS)],
        cwd=ROOT,
        env={"MYPYPATH": ":".join(sources), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert typed.returncode == 0, typed.stdout + typed.stderr
    for name in KINDS:
        for task in (["check"], ["format", "--check"]):
            ruff = [PYTHON, "-m", "ruff", *task, "--no-cache", "."]
            tidy = subprocess.run(ruff, cwd=written / name, capture_output=True, text=True)
            assert tidy.returncode == 0, tidy.stdout


@pytest.mark.parametrize(
    ("name", "right", "wrong", "check"),
    [
        ("near-by", "= self.scale_for", "= -self.scale_for", "check_matches_reference"),
        ("beside", "sigmoid(heard", "sigmoid(-heard", "check_fm_matches_reference"),
    ],
)
def test_one_changed_sign_is_found(
    written: Path, name: str, right: str, wrong: str, check: str
) -> None:
    path = written / name / "src" / name.replace("-", "_") / "attention.py"
    source = path.read_text(encoding="utf-8")
    assert right in source
    changed: dict[str, Any] = {"__name__": "changed"}
    exec(compile(source.replace(right, wrong), str(path), "exec"), changed)
    with pytest.raises(CheckFailure) as caught:
        run_checks(checks_of(subjects_of_class(name, changed[CLASSES[name]])))
    assert caught.value.check == check


def test_the_next_commands_are_those_that_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert new("near-by", "--folder", "my work") == 0
    said = capsys.readouterr().out
    commands = [shlex.split(line) for line in said.splitlines() if line.startswith("  ")]
    assert commands == [
        ["pip", "install", "-e", "./my work/near-by[dev]"],
        ["polyattn", "check", "near_by"],
        ["pytest", "./my work/near-by"],
    ]
    files = {str(p.relative_to(tmp_path / "my work")) for p in tmp_path.rglob("*") if p.is_file()}
    assert files == {
        "near-by/.gitignore",
        "near-by/README.md",
        "near-by/pyproject.toml",
        "near-by/src/near_by/__init__.py",
        "near-by/src/near_by/attention.py",
        "near-by/src/near_by/py.typed",
        "near-by/tests/test_near_by.py",
    }


REFUSED = [
    (["class"], "'class' is a word of Python itself; take another name, such as my_class"),
    (["none"], "'none' is a word of Python itself"),
    (["json"], "Python has a module 'json' of its own"),
    (["softmax"], "'softmax' is registered already, by polyattn"),
    (["mistral-window"], "'mistral_window' is registered already, by polyattn"),
    (["polyattn"], "a plugin called 'polyattn' is installed already"),
    (["torch"], "a package called 'torch' is installed already"),
    (["import-linter"], "a package called 'import_linter' is installed already"),
    (["tests"], "'tests' is a folder inside the package"),
    (["user"], "'user' is what polyattn calls your own registry.yaml"),
    (["NearBy"], "from a letter to a letter or digit, such as nearby"),
    (["near by"], "such as near_by"),
    (["near_"], "such as near"),
    (["3d-near"], "such as d_near"),
    (["../near"], "such as near"),
    (["a" * 33], "up to 32"),
    ([""], "expected a name of up to 32 small letters"),
    (["near", "--kind", "feature"], "--kind feature: unknown kind, did you mean 'feature_map'?"),
    (["near", "--kind", "x"], "--kind x: unknown kind; kinds are sequence and feature_map"),
]


@pytest.mark.parametrize(("arguments", "said"), REFUSED, ids=[" ".join(a) for a, _ in REFUSED])
def test_what_cannot_be_is_refused_with_the_way_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert new(*arguments, "--folder", str(tmp_path)) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_name_that_a_plugin_has_is_refused(environment: Environment, tmp_path: Path) -> None:
    done = environment.run("polyattn", "new", "beside", "--folder", tmp_path)
    assert done.returncode == 2
    assert "'beside' is registered already, by beside" in done.stderr
    fresh = environment.run("polyattn", "new", "nearest", "--folder", tmp_path)
    assert fresh.returncode == 0, fresh.stderr  # the templates are in the wheel
    assert (tmp_path / "nearest" / "pyproject.toml").exists()


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "near").mkdir()
    assert new("near", "--folder", str(tmp_path)) == 0
    mine = tmp_path / "near" / "README.md"
    mine.write_text("mine")
    assert new("near", "--folder", str(tmp_path)) == 2
    assert "is there and not empty; choose another name or --folder" in capsys.readouterr().err
    assert mine.read_text() == "mine"
    (tmp_path / "far").write_text("a file")
    (tmp_path / "away").symlink_to(tmp_path / "nowhere")
    for name in ("far", "away"):
        assert new(name, "--folder", str(tmp_path)) == 2
        assert "is there and no folder" in capsys.readouterr().err
    assert not (tmp_path / "nowhere").exists()
    assert new("near", "--folder", str(tmp_path / "far")) == 2
    assert "cannot be written" in capsys.readouterr().err
