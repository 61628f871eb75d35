"""Every planted fault with the check that must catch it, and what counts as caught."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from pathlib import Path

from torch.autograd.gradcheck import GradcheckError

from polyattn.testing import Result

_VARIANTS = tuple(
    importlib.import_module(f"tests.testing.{path.stem}")
    for path in sorted(Path(__file__).parent.glob("broken*.py"))
)
_THINGS = tuple(
    importlib.import_module(f"tests.testing.{name}")
    for name in ("things_hf", "things_modules", "things_models")
)

CAUGHT: tuple[tuple[type, str], ...] = tuple(
    entry for module in _VARIANTS for entry in module.CAUGHT
)
"""(class, name of the check)."""

CAUGHT_AT_DOORS = tuple(entry for module in _THINGS for entry in module.CAUGHT)
"""(class or function, name of the check), for the doors of code that is no variant."""

RAISES = frozenset(
    thing for module in (*_VARIANTS, *_THINGS) for thing in getattr(module, "RAISES", ())
)
"""What is meant to raise. All else must be caught by what it gives: that it fails to run, for
whatever reason, shows nothing of the fault that it was planted for."""


def as_meant(thing: object, failed: Iterable[Result]) -> bool:
    """Whether a failure is of the kind by which this thing is to be caught."""
    causes = [result.failure.__cause__ for result in failed if result.failure is not None]
    # gradcheck raises what it finds.
    raised = [cause is not None and not isinstance(cause, GradcheckError) for cause in causes]
    return (thing in RAISES) in raised
