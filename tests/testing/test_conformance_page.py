"""docs/conformance.md says of the suite what is so: its checks, what they catch, what is unread."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import re
from collections import defaultdict
from pathlib import Path

from tests.testing.test_suite_catches import CAUGHT

import polyattn.testing
from polyattn.capabilities import Capabilities, FeatureMapCapabilities, Support
from polyattn.testing import checks
from polyattn.testing.results import Property

PAGE = Path(__file__).parents[2] / "docs" / "conformance.md"
ROW = re.compile(r"^\| `(check_\w+)` \| (.+?) \| (.+?) \|$", re.MULTILINE)


def properties() -> dict[str, Property]:
    """Every check of the suite, by name."""
    modules = [
        importlib.import_module(f"{checks.__name__}.{found.name}")
        for found in pkgutil.iter_modules(checks.__path__)
    ]
    return {
        name: function.property
        for module in modules
        for name, function in vars(module).items()
        if name.startswith("check_") and hasattr(function, "property")
    }


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
    broken: dict[str, set[str]] = defaultdict(set)
    for variant, name in CAUGHT:
        broken[name].add(variant.__name__)
    told = {name: set(variants.split(", ")) for name, _, variants in ROW.findall(PAGE.read_text())}
    assert told == broken


def test_claims_that_no_check_reads_are_listed() -> None:
    text = PAGE.read_text().partition("## Claims that no check reads")[2].partition("\n## ")[0]
    assert set(re.findall(r"^- `(\w+)`", text, re.MULTILINE)) == unread()
