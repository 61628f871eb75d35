"""Every registered variant and operation, by the same way in as a stranger's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from polyattn.errors import PolyattnError
from polyattn.registry import discover
from polyattn.testing import Status, subjects_of
from polyattn.testing.planned import Check, planned
from polyattn.testing.runner import checks_of, run_check


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """The tensors are tiny: on a busy machine, threads wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def conformance() -> Iterator[object]:
    """One parameter for each check of each name; a name that cannot be used fails as one."""
    registry = discover()
    for name in (*registry.operations, *registry.variants):
        try:
            checks = list(checks_of(subjects_of(name)))
        except PolyattnError as error:
            checks = [planned(pytest.fail, "usable", f"{name} cannot be checked: {error}")]
        for check in checks:
            if check.withheld is None:
                yield pytest.param(check, id=f"{name}-{check.id}")


LACKING = "check_vmap[gradient"
"""What a built-in variant may lack, of all that nobody claims: its kernel has no rule for vmap."""


@pytest.mark.parametrize("check", list(conformance()))
def test_variant(check: Check) -> None:
    result = run_check(check)
    good = {Status.PASSED, Status.NOT_CLAIMED}
    if check.id.startswith(LACKING):
        good.add(Status.DOES_NOT_HOLD)
    assert result.status in good, result.failure or result.reason


def test_something_is_registered() -> None:
    assert len(discover().variants) >= 9
