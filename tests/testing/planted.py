"""Every planted fault with the check that must catch it, from all files ``broken*.py``."""

from __future__ import annotations

import importlib
from pathlib import Path

CAUGHT: tuple[tuple[type, str], ...] = tuple(
    entry
    for path in sorted(Path(__file__).parent.glob("broken*.py"))
    for entry in importlib.import_module(f"tests.testing.{path.stem}").CAUGHT
)
"""(class, name of the check)."""

CAUGHT_AT_DOORS = tuple(
    entry
    for name in ("things_hf", "things_modules", "things_models")
    for entry in importlib.import_module(f"tests.testing.{name}").CAUGHT
)
"""(class or function, name of the check), for the doors of code that is no variant."""
