"""The conformance suite: what every attention must do, as checks that explain their failures.

``check_variant(name)`` runs it over a registered variant and gives results as data,
``check_class(cls)`` over a class that is not registered yet;
``parametrize_with_checks`` makes tests of it; ``polyattn check`` prints it, and its doors take code
that has never heard of polyattn. ``position_checks``, ``mask_checks`` and ``state_checks`` are for
authors of those. Nothing is imported before it is used: pytest loads a plugin from here.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyattn.testing.generate.parts import mask_checks as mask_checks
    from polyattn.testing.generate.parts import position_checks as position_checks
    from polyattn.testing.generate.parts import state_checks as state_checks
    from polyattn.testing.generate.variants import iter_checks as iter_checks
    from polyattn.testing.parametrize import parametrize_with_checks as parametrize_with_checks
    from polyattn.testing.results import CheckFailure as CheckFailure
    from polyattn.testing.results import Property as Property
    from polyattn.testing.results import Result as Result
    from polyattn.testing.results import Seen as Seen
    from polyattn.testing.results import Status as Status
    from polyattn.testing.runner import check_class as check_class
    from polyattn.testing.runner import check_variant as check_variant
    from polyattn.testing.runner import run_checks as run_checks
    from polyattn.testing.subjects.mask_meanings import MaskSubject as MaskSubject
    from polyattn.testing.subjects.parts import PARTS_OF_THE_FRAMEWORK as PARTS_OF_THE_FRAMEWORK
    from polyattn.testing.subjects.parts import checks_of_part as checks_of_part
    from polyattn.testing.subjects.positions import Counting as Counting
    from polyattn.testing.subjects.positions import DistanceBias as DistanceBias
    from polyattn.testing.subjects.positions import Embedding as Embedding
    from polyattn.testing.subjects.positions import PositionSubject as PositionSubject
    from polyattn.testing.subjects.positions import Rotation as Rotation
    from polyattn.testing.subjects.states import StateSubject as StateSubject
    from polyattn.testing.subjects.variant import subjects_of as subjects_of
    from polyattn.testing.subjects.variant import subjects_of_class as subjects_of_class

_HOME = {
    "CheckFailure": "results",
    "Counting": "subjects.positions",
    "DistanceBias": "subjects.positions",
    "Embedding": "subjects.positions",
    "MaskSubject": "subjects.mask_meanings",
    "PARTS_OF_THE_FRAMEWORK": "subjects.parts",
    "PositionSubject": "subjects.positions",
    "Property": "results",
    "Result": "results",
    "Rotation": "subjects.positions",
    "Seen": "results",
    "StateSubject": "subjects.states",
    "Status": "results",
    "check_class": "runner",
    "check_variant": "runner",
    "checks_of_part": "subjects.parts",
    "iter_checks": "generate.variants",
    "mask_checks": "generate.parts",
    "parametrize_with_checks": "parametrize",
    "position_checks": "generate.parts",
    "run_checks": "runner",
    "state_checks": "generate.parts",
    "subjects_of": "subjects.variant",
    "subjects_of_class": "subjects.variant",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    """PEP 562: import a public name from its home."""
    if name not in _HOME:
        raise AttributeError(f"module 'polyattn.testing' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"polyattn.testing.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
