"""What users rely on does not go away unnoticed: see docs/stability.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.public_names import current, written

import polyattn
from polyattn.spec import API, OLDEST_API

PAGE = (Path(__file__).parents[1] / "docs/stability.md").read_text(encoding="utf-8")
WRITE = "`python -m tests.public_names` writes the list anew"


def removed(before: dict[str, list[str]], after: dict[str, list[str]]) -> list[str]:
    """Each name that was there and is no longer."""
    return [
        f"{part}: {name}"
        for part, names in before.items()
        for name in names
        if name not in after.get(part, ())
    ]


def test_nothing_public_was_removed() -> None:
    gone = removed(written(), current())
    assert not gone, f"removed, see docs/stability.md for what that takes: {gone}; {WRITE}"


def test_a_new_public_name_is_a_promise_made_knowingly() -> None:
    new = {part: names for part, names in current().items() if part in ("polyattn", "hooks")}
    assert not removed(new, written()), f"not in tests/public_names.yaml yet; {WRITE}"


def test_a_removal_would_be_seen() -> None:
    before = written()
    after = {part: names[1:] for part, names in before.items()}
    assert len(removed(before, after)) == len(before)
    assert removed({"a": ["b"]}, {}) == ["a: b"]


def test_a_name_on_its_way_out_still_works_and_says_what_to_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(polyattn._OLD, "make", ("create", "0.4"))
    with pytest.warns(DeprecationWarning, match=r"0\.4") as caught:
        found = polyattn.make
    assert found is polyattn.create
    (warning,) = caught
    assert str(warning.message) == "polyattn.make is gone in polyattn 0.4; use polyattn.create"
    assert warning.filename == __file__


def test_the_page_names_the_contract_and_the_parts_that_are_listed() -> None:
    assert f"This version speaks contract {API}" in PAGE
    assert (f"to {OLDEST_API}" in PAGE) == (OLDEST_API < API)
    for part in ("polyattn.kit", "polyattn.testing", "polyattn_variants", "public_names.yaml"):
        assert part in PAGE
    for section in written()["manifest"]:
        assert re.search(rf"`{section}`", PAGE), section
