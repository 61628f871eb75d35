"""What is put back after code that changes the settings of the process."""

from __future__ import annotations

import torch

from polyattn.testing.process.settings import changes_watched, settings_restored


def test_that_nondeterminism_only_warns_is_kept_and_watched() -> None:
    with settings_restored():
        torch.use_deterministic_algorithms(True, warn_only=True)
        with settings_restored(), changes_watched() as changed:
            torch.use_deterministic_algorithms(True)
        assert changed == ["whether others only warn from True to False"]
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
