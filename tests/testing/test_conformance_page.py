"""docs/conformance.md says of the suite what is so: its checks, what they catch."""

from __future__ import annotations

import re

from tests.mutants import page as mutants_page
from tests.testing.conformance_page import PAGE, ROW, ROWS, broken, properties, written


def test_the_table_lists_every_check_with_what_it_proves() -> None:
    told = {name: meaning for name, meaning, _ in ROW.findall(PAGE.read_text())}
    assert told == {name: property.meaning for name, property in properties().items()}


def test_the_page_is_as_it_would_be_written_anew() -> None:
    text = PAGE.read_text()
    assert written(text) == text
    listed = [name for name, _, _ in ROW.findall(text)]
    assert len(listed) == len(set(listed))


def test_the_table_of_checks_stands_in_its_own_section() -> None:
    """The ways in name functions that are called check_..., too: they are no rows of checks."""
    before, _, after = PAGE.read_text().partition("## The checks\n")
    assert "`check_variant(" in before
    assert not ROWS.search(before)
    assert len(ROWS.findall(after)) == 1


def test_the_contents_list_each_section_and_survive_what_writes_the_page() -> None:
    text = PAGE.read_text()
    for page in (text, written(text), mutants_page.written(text)):
        sections = re.findall(r"^## (.+)$", page, re.MULTILINE)
        listed = re.findall(r"^- \[(.+)\]\(#(.+)\)", page.partition("\n## ")[0], re.MULTILINE)
        assert [title for title, _ in listed] == sections
        assert [link for _, link in listed] == [_anchor(title) for title in sections]


def _anchor(title: str) -> str:
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def test_the_table_lists_the_broken_variants() -> None:
    told = {name: set(variants.split(", ")) for name, _, variants in ROW.findall(PAGE.read_text())}
    assert told == broken()
