"""Peak memory: what was planted is what is read."""

import pytest
import torch

from polyattn.measure.memory import peak_bytes, peak_of

MB = 2**20


def test_a_planted_allocation_is_measured():
    def plant():
        held = torch.empty(48 * MB, dtype=torch.uint8)
        held = torch.empty(64 * MB, dtype=torch.uint8)
        return held

    # Both live for a moment: the name is bound anew only after the second was made.
    assert peak_bytes(plant) == pytest.approx(112 * MB, rel=0.05)


def test_what_is_freed_meanwhile_does_not_add_up():
    def plant():
        for _ in range(4):
            torch.empty(32 * MB, dtype=torch.uint8)

    assert peak_bytes(plant) == pytest.approx(32 * MB, rel=0.05)


def test_the_inputs_do_not_count_and_the_output_does():
    held = torch.zeros(16 * MB, dtype=torch.uint8)
    assert peak_bytes(lambda: held.clone()) == pytest.approx(16 * MB, rel=0.05)
    assert peak_bytes(lambda: held.max()) < MB


def test_softmax_written_out_holds_its_map_twice():
    q = torch.randn(1, 2, 512, 16)
    one = 2 * 512 * 512 * 4
    assert peak_bytes(lambda: torch.softmax(q @ q.mT, -1)) == pytest.approx(2 * one, rel=0.05)


def test_the_peak_is_the_highest_running_sum():
    assert peak_of([5, -5, 3, 4, -2, 1]) == 7
    assert peak_of([]) == 0
    # Releasing something older than the call must not hide what comes after.
    assert peak_of([-5, 3]) == 0
