"""docs/found.md says what was found, by adapters and reproductions that are as short as it says."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

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


def test_an_entry_that_failed_says_so() -> None:
    found = json.loads((HALL / "found.json").read_text())["entries"]
    for entry in hall().load_entries():
        failed = found[entry["adapter"]]["failed"]
        assert (entry["verdict"] == "right") == (not failed), (entry["adapter"], failed)


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
