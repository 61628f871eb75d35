"""The conformance suite: what every attention must do, as checks that explain their failures.

``check_variant(name)`` runs it over a registered variant and gives results as data;
``polyattn check`` prints them, and its doors take code that has never heard of polyattn.
``position_checks``, ``mask_checks`` and ``state_checks`` are for authors of those.
"""

from __future__ import annotations

from polyattn.testing.generate import iter_checks
from polyattn.testing.generate_parts import mask_checks, position_checks, state_checks
from polyattn.testing.mask_meanings import MaskSubject
from polyattn.testing.parts import PARTS_OF_THE_FRAMEWORK, checks_of_part
from polyattn.testing.positions import (
    Counting,
    DistanceBias,
    Embedding,
    PositionSubject,
    Rotation,
)
from polyattn.testing.results import CheckFailure, Property, Result, Seen, Status
from polyattn.testing.runner import check_variant, run_checks
from polyattn.testing.state_subjects import StateSubject
from polyattn.testing.variant import subjects_of, subjects_of_class

__all__ = [
    "PARTS_OF_THE_FRAMEWORK",
    "CheckFailure",
    "Counting",
    "DistanceBias",
    "Embedding",
    "MaskSubject",
    "PositionSubject",
    "Property",
    "Result",
    "Rotation",
    "Seen",
    "StateSubject",
    "Status",
    "check_variant",
    "checks_of_part",
    "iter_checks",
    "mask_checks",
    "position_checks",
    "run_checks",
    "state_checks",
    "subjects_of",
    "subjects_of_class",
]
