"""The conformance suite: what every attention must do, as checks that explain their failures.

``check_variant(name)`` runs it over a registered variant and gives results as data;
``polyattn check`` prints them, and its doors take code that has never heard of polyattn.
"""

from __future__ import annotations

from polyattn.testing.generate import iter_checks
from polyattn.testing.results import CheckFailure, Property, Result, Seen, Status
from polyattn.testing.runner import check_variant, run_checks
from polyattn.testing.variant import subjects_of, subjects_of_class

__all__ = [
    "CheckFailure",
    "Property",
    "Result",
    "Seen",
    "Status",
    "check_variant",
    "iter_checks",
    "run_checks",
    "subjects_of",
    "subjects_of_class",
]
