"""The tables of docs/conformance.md: ``python -m tests.testing.conformance_page`` writes them."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections import defaultdict
from pathlib import Path

from tests.testing.planted import CAUGHT, CAUGHT_AT_DOORS
from tests.testing.reports import table

from polyattn.testing import checks
from polyattn.testing.results import Property

PAGE = Path(__file__).parents[2] / "docs" / "conformance.md"
ROW = re.compile(r"^\| `(check_\w+)` \| (.+?) \| (.+?) \|$", re.MULTILINE)
REPORT_ROWS = re.compile(r"(?:^\| \[\S+#\d+\]\(.+\n)+", re.MULTILINE)
ROWS = re.compile(r"(?:^\| `check_\w+` \|.+\n)+", re.MULTILINE)


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


def broken() -> dict[str, set[str]]:
    """The broken variants that each check must catch."""
    found: dict[str, set[str]] = defaultdict(set)
    for variant, name in (*CAUGHT, *CAUGHT_AT_DOORS):
        found[name].add(variant.__name__)
    # These need a device that stands in for another: test_devices plants them.
    found["check_unclaimed_device_is_refused"] |= {"AnswersAnywhere", "LeavesItToTheKernel"}
    return found


def rows() -> str:
    """The table's rows: those on the page keep their places, new ones come last."""
    planted, known = broken(), properties()
    old = [name for name, _, _ in ROW.findall(PAGE.read_text()) if name in known]
    names = dict.fromkeys([*old, *known])
    return "".join(
        f"| `{name}` | {known[name].meaning} | {', '.join(sorted(planted[name]))} |\n"
        for name in names
    )


def written(text: str) -> str:
    """The page's text with the tables as they should be."""
    text = ROWS.sub(lambda _: rows(), text, count=1)
    return REPORT_ROWS.sub(lambda _: table(), text, count=1)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
