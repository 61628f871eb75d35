"""Where a run writes: never where something is already."""

import pytest

from polyattn.errors import ConfigError
from polyattn.measure.folders import new_folder


def test_runs_are_numbered(tmp_path):
    made = [new_folder(None, tmp_path).name for _ in range(3)]
    assert made == ["0001", "0002", "0003"]
    (tmp_path / "polyattn-runs" / "0041").mkdir()
    (tmp_path / "polyattn-runs" / "notes").mkdir()
    assert new_folder(None, tmp_path).name == "0042"


def test_a_number_that_another_run_took_meanwhile_is_passed_over(tmp_path, monkeypatch):
    runs = tmp_path / "polyattn-runs"
    runs.mkdir()
    (runs / "0001").mkdir()
    monkeypatch.setattr(type(runs), "iterdir", lambda self: iter(()))
    assert new_folder(None, tmp_path).name == "0002"


def test_a_folder_that_appears_in_the_last_moment_is_not_taken(tmp_path, monkeypatch):
    out = tmp_path / "out"
    out.mkdir()
    monkeypatch.setattr(type(out), "exists", lambda self: False)
    with pytest.raises(ConfigError, match="cannot make the folder"):
        new_folder(out)


@pytest.mark.parametrize("make", ["mkdir", "touch"])
def test_what_exists_is_not_overwritten(tmp_path, make):
    getattr(tmp_path / "out", make)()
    with pytest.raises(ConfigError, match="exists already and is not overwritten"):
        new_folder(tmp_path / "out")


def test_a_named_folder_is_made_with_its_parents(tmp_path):
    assert new_folder(tmp_path / "a" / "b").is_dir()


def test_a_place_where_no_folder_can_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"cannot make the folder .*; name another with --out"):
        new_folder(tmp_path / "file" / "out")
