"""docs/reading-a-check.md names every status, every key of --json, and the tolerances in force."""

from __future__ import annotations

from pathlib import Path

from polyattn.cli.check_report import Report
from polyattn.testing import CheckFailure, Property, Result, Seen, Status
from polyattn.testing.tools import numerics

PAGE = (Path(__file__).parents[2] / "docs" / "reading-a-check.md").read_text()


def test_every_status_is_explained() -> None:
    assert [status for status in Status if f"| `{status}` |" not in PAGE] == []


def test_what_fails_a_run_says_so() -> None:
    rows = {row.split("`")[1]: row for row in PAGE.splitlines() if row.startswith("| `")}
    for status in Status:
        assert ("| fails |" in rows[str(status)]) == (not status.good), status


def test_every_key_of_the_data_is_explained() -> None:
    failure = CheckFailure("check_x", Property(meaning="m", causes=("c",)), Seen(what="w"))
    result = Result(id="check_x", status=Status.FAILED, reason="r", failure=failure)
    row = result.as_json()
    keys = {*Report("x", "cpu", silent=True).as_json(), *row, *row["failure"]}
    assert [key for key in sorted(keys) if f"`{key}`" not in PAGE] == []


def test_the_tolerances_are_those_in_force() -> None:
    for number in (numerics.VALUE_FLOAT64, numerics.SAME_FLOAT64):
        assert f"{number:.0e}" in PAGE
    assert f"{numerics.SAME_EPS:g} eps" in PAGE
