"""Each public report is caught where it is planted, or says why it cannot happen here."""

from __future__ import annotations

from collections import Counter

from tests.testing.conformance_page import PAGE, REPORT_ROWS
from tests.testing.planted import CAUGHT
from tests.testing.reports import load_reports, table

PLANTED = {(variant.__name__, check) for variant, check in CAUGHT}


def test_what_is_said_to_be_caught_is_planted_and_caught() -> None:
    """That each planted fault is caught by its check, ``test_suite_catches`` shows."""
    for report in load_reports():
        if report.end == "caught":
            assert (report.planted, report.said) in PLANTED, report
        else:
            assert not report.planted, report
            assert len(report.said.split()) > 4, report


def test_nearly_all_reports_are_caught() -> None:
    ends = Counter(report.end for report in load_reports())
    assert ends["caught"] >= 90
    assert ends.total() == 140


def test_the_page_has_every_report() -> None:
    found = REPORT_ROWS.search(PAGE.read_text())
    assert found is not None
    assert found[0] == table()
