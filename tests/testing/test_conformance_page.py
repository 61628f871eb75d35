"""docs/conformance.md says of the suite what is so: its checks, what they catch, what is unread."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from tests.testing.conformance_page import PAGE, ROW, broken, properties

import polyattn.testing
from polyattn.capabilities import Capabilities, FeatureMapCapabilities, Support


def unread() -> set[str]:
    """The claims that no line of the suite reads."""
    folder = Path(polyattn.testing.__file__).parent
    source = "\n".join(path.read_text() for path in folder.rglob("*.py"))
    fields = [
        field.name
        for claims in (Capabilities, FeatureMapCapabilities, Support)
        for field in dataclasses.fields(claims)
    ]
    return {name for name in fields if not re.search(rf"\.{name}\b", source)}


def test_the_table_lists_every_check_with_what_it_proves() -> None:
    told = {name: meaning for name, meaning, _ in ROW.findall(PAGE.read_text())}
    assert told == {name: property.meaning for name, property in properties().items()}


def test_the_table_lists_the_broken_variants() -> None:
    told = {name: set(variants.split(", ")) for name, _, variants in ROW.findall(PAGE.read_text())}
    assert told == broken()


def test_claims_that_no_check_reads_are_listed() -> None:
    text = PAGE.read_text().partition("## Claims that no check reads")[2].partition("\n## ")[0]
    assert set(re.findall(r"^- `(\w+)`", text, re.MULTILINE)) == unread()
