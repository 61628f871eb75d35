"""A variant's file opens with what it computes: equation, paper, deviations, cost, and limits."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path

import pytest

from polyattn.registry import discover
from polyattn.spec import VariantSpec

GROWTHS = {
    "sequence": {"linear in the length", "quadratic in the length"},
    "feature_map": {"linear in the pixels", "quadratic in the pixels"},
}
HEADINGS = ("Paper", "Deviations", "Cost", "When not to use it")


def variants() -> list[VariantSpec]:
    entries = discover().variants.values()
    specs = [entry.spec for entry in entries if entry.distribution == "polyattn"]
    return [spec for spec in specs if isinstance(spec, VariantSpec)]


def header(spec: VariantSpec) -> str:
    """The docstring of its module, which is not imported: some need a package of their own."""
    found = importlib.util.find_spec(spec.target.partition(":")[0])
    assert found is not None
    assert found.origin is not None
    return ast.get_docstring(ast.parse(Path(found.origin).read_text("utf-8"))) or ""


def paragraph(text: str, heading: str) -> str:
    """What follows a heading, up to the next one."""
    rest = "|".join(HEADINGS)
    found = re.search(rf"^{heading}s?\b(.*?)(?=^(?:{rest})|\Z)", text, re.MULTILINE | re.DOTALL)
    return found.group(1).strip(" :\n") if found else ""


def growth(text: str) -> str:
    """The first words of the cost line: how time and memory grow."""
    return paragraph(text, "Cost").partition(":")[0]


SPECS = variants()


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_a_header_says_all_of_it(spec: VariantSpec) -> None:
    text = header(spec)
    assert re.search(r"^    \S.* = ", text, re.MULTILINE), "no equation, indented by four"
    for heading in HEADINGS:
        assert len(paragraph(text, heading)) > 4, f"nothing under {heading!r}"
    assert re.search(r"https://\S+", paragraph(text, "Paper")), "no address of the paper"
    assert growth(text) in GROWTHS[spec.kind]
    assert re.search(r"[Mm]emory", paragraph(text, "Cost")), "the cost line is silent on memory"


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_the_paper_is_that_of_the_manifest(spec: VariantSpec) -> None:
    assert spec.paper in header(spec)


def test_a_poor_header_is_found() -> None:
    text = "It attends.\n\n    a = b\n\nPaper: none\n\nCost: 4 H D.\n"
    assert growth(text) not in GROWTHS["sequence"]
    assert not paragraph(text, "When not to use it")
    assert paragraph(text, "Paper") == "none"
