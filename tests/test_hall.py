"""docs/found.md says what was found, by adapters and reproductions that are as short as it says."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

HALL = Path(__file__).parents[1] / "hall"


def hall() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hall", HALL / "hall.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_shows_what_was_found_for_every_entry() -> None:
    module, page = hall(), (HALL.parent / "docs" / "found.md").read_text()
    found = json.loads((HALL / "found.json").read_text())
    entries = module.load_entries()
    assert len(entries) >= 20
    assert module.table(entries, found) in page
    assert module.faults(found) in page


def test_the_page_was_made_with_the_checks_of_today() -> None:
    """Made by other checks it may call right what fails by now. Entries that depend on it are
    those of all packages, so that it is made anew by a command and not here."""
    told = hall().changed(json.loads((HALL / "found.json").read_text()))
    assert not told, f"docs/found.md is stale; run `make hall-of-faults`. Of its checks {told}"


def test_a_check_that_came_or_went_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    module = hall()
    found = {"checks": module.checks_of_doors()}
    assert len(found["checks"]) > 80
    for name in ("check_matches_reference", "check_hf_output", "check_module_output"):
        assert name in found["checks"]
    assert not [name for name in found["checks"] if name.startswith("check_fm_")]
    new = [*found["checks"][1:], "check_new"]
    monkeypatch.setattr(module, "checks_of_doors", lambda: new)
    assert module.changed(found) == f"came: check_new; went: {found['checks'][0]}"
    assert module.changed({}).startswith("came: ")


def test_what_was_not_finished_is_not_called_right() -> None:
    module = hall()
    entry = {"adapter": "a", "what": "A", "package": "p", "door": "sdpa", "verdict": "right"}
    result = {"version": "1", "counts": {"passed": 3}, "failed": {}, "unfinished": 2}
    row = module.table([entry], {"entries": {"a": result}}).splitlines()[-1]
    assert "unfinished: 2 checks were not run" in row
    assert "right" not in row
    found = json.loads((HALL / "found.json").read_text())["entries"]
    assert {name: x["unfinished"] for name, x in found.items() if x.get("unfinished")} == {}


def test_an_entry_that_failed_says_so() -> None:
    found = json.loads((HALL / "found.json").read_text())["entries"]
    for entry in hall().load_entries():
        failed = found[entry["adapter"]]["failed"]
        spared = entry["verdict"] == "right" or "told in a note" in entry["verdict"]
        assert spared == (not failed), (entry["adapter"], failed)


def test_adapters_and_reproductions_are_short() -> None:
    used = {entry["adapter"] for entry in hall().load_entries()}
    adapters = {path.stem: path for path in (HALL / "adapters").glob("*.py")}
    assert set(adapters) == used
    for path in adapters.values():
        assert len(path.read_text().splitlines()) <= 10, path.name
    found = json.loads((HALL / "found.json").read_text())["faults"]
    faults = list((HALL / "faults").glob("*.py"))
    assert set(found) == {path.name for path in faults}
    for path in faults:
        assert len(path.read_text().splitlines()) <= 15, path.name


def test_no_fault_has_gone() -> None:
    """What a newer version has mended is taken from the page, not shown as found."""
    found = json.loads((HALL / "found.json").read_text())["faults"]
    assert found
    assert [name for name, said in found.items() if said == "gone"] == []
