"""Every registered variant and operation, by the same way in as a stranger's."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from polyattn.registry import discover
from polyattn.testing import parametrize_with_checks

NAMES = [*discover().operations, *discover().variants]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """The tensors are tiny: on a busy machine, threads wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@parametrize_with_checks(NAMES)
def test_variant(check: Callable[[], None]) -> None:
    check()


@parametrize_with_checks(NAMES, device="cuda")
def test_variant_on_cuda(check: Callable[[], None]) -> None:
    check()


def test_something_is_registered() -> None:
    assert len(discover().variants) >= 9
