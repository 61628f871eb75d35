"""What a feature-map variant may claim of its symmetry and its pooling."""

from __future__ import annotations

from typing import Any

import pytest

from polyattn import FeatureMapCapabilities
from polyattn.errors import ConfigError


@pytest.mark.parametrize(
    ("claims", "words"),
    [
        ({"pooling": {"avg"}}, "claim the range of the gate as well"),
        ({"pooling": {"avg", "mean"}, "gate": (0.0, 1.0)}, r"\['mean'\]: expected avg, max"),
        ({"symmetry": "rotation"}, "'rotation': expected None, 'pixels' or 'translation'"),
    ],
)
def test_claims_that_say_nothing_are_refused(claims: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        FeatureMapCapabilities(**claims)


def test_a_pooling_is_kept_as_a_value() -> None:
    claims = FeatureMapCapabilities(pooling={"avg", "max"}, gate=(0.0, 1.0), symmetry="pixels")
    assert claims.pooling == frozenset({"avg", "max"})
    assert FeatureMapCapabilities().symmetry is None
