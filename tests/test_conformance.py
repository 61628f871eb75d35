"""All that is registered, and the framework's own parts, by the same way in as a stranger's."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from polyattn.registry import discover
from polyattn.testing import PARTS_OF_THE_FRAMEWORK, parametrize_with_checks

FOUND = discover()
NAMES = [*FOUND.operations, *FOUND.variants, *PARTS_OF_THE_FRAMEWORK]
PRESETS = [*FOUND.presets]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """The tensors are tiny: on a busy machine, threads wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@parametrize_with_checks(NAMES, extended=True)
def test_variant(check: Callable[[], None]) -> None:
    check()


# Other options of a variant that is run at length above.
@parametrize_with_checks(PRESETS)
def test_preset(check: Callable[[], None]) -> None:
    check()


@parametrize_with_checks([*NAMES, *PRESETS], device="cuda")
def test_variant_on_cuda(check: Callable[[], None]) -> None:
    check()


def test_something_is_registered() -> None:
    assert len(FOUND.variants) >= 9
    assert {"mistral_window", "core/mask", "core/rope"} <= {*NAMES, *PRESETS}


def test_what_takes_seconds_is_run_here() -> None:
    (mark,) = (mark for mark in test_variant.pytestmark if mark.name == "parametrize")
    extended = {case.values[0].check.name for case in mark.args[1] if case.values[0].check.extended}
    assert {"check_compile", "check_export", "check_threads", "check_large_sizes"} <= extended
    assert {"check_no_quadratic_memory", "check_autocast"} <= extended
