"""Fixtures that several folders of tests share."""

from pathlib import Path

import pytest
from tests.environments import ROOT, build


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    return build(ROOT, "wheel", tmp_path_factory.mktemp("wheel"))
