"""No check depends on another, on the order, or on the global random state."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

import pytest
import torch
from tests.testing.correct import Plain

from polyattn.testing import Result, Status, run_checks, subjects_of, subjects_of_class
from polyattn.testing.planned import Check, planned
from polyattn.testing.results import CheckFailure, Mismatch, Property, Seen
from polyattn.testing.runner import checks_of


class Twice(Plain):
    """Wrong everywhere: so that there are figures to compare."""

    def logits(self, q, k):  # type: ignore[no-untyped-def]
        return super().logits(q, k) * 2


def figures(checks: Sequence[Check]) -> Mapping[str, tuple[Status, str, str]]:
    results: list[Result] = run_checks(checks, on_fail="collect")
    return {x.id: (x.status, x.reason, str(x.failure)) for x in results}


def differing(checks: Sequence[Check]) -> list[str]:
    """The ids that end otherwise when all is run again, in the reversed order."""
    first, again = figures(checks), figures(checks[::-1])
    return [id for id in first if first[id] != again[id]]


def states() -> tuple[object, ...]:
    return torch.get_rng_state().tolist(), random.getstate()


@pytest.mark.parametrize(
    "plan",
    [
        lambda: checks_of(subjects_of("se")),
        lambda: checks_of(subjects_of("gated_linear")),
        lambda: checks_of(subjects_of_class("twice", Twice)),
    ],
    ids=["se", "gated_linear", "wrong"],
)
def test_again_and_in_another_order_it_is_the_same(plan: Callable[[], Sequence[Check]]) -> None:
    torch.manual_seed(11)
    random.seed(11)
    before = states()
    assert differing(list(plan())) == []
    assert states() == before


def test_another_random_state_changes_nothing() -> None:
    checks = list(checks_of(subjects_of("se")))
    torch.manual_seed(1)
    first = figures(checks)
    torch.manual_seed(2)
    random.seed(2)
    assert figures(checks) == first


def test_checks_that_read_what_another_leaves_would_be_seen() -> None:
    seen: list[int] = []
    property = Property(meaning="It is the first.", causes=())

    def check_first(at: int) -> None:
        seen.append(at)
        if len(seen) > 1:
            what = f"it is number {len(seen)}"
            raise CheckFailure("check_first", property, Seen(what=what)) from Mismatch(
                Seen(what=what)
            )

    assert differing([planned(check_first, str(at), at) for at in range(2)])


def test_what_a_check_leaves_behind_does_not_reach_the_next() -> None:
    def check_leaves() -> None:
        torch.manual_seed(3)
        random.seed(3)
        torch.set_default_dtype(torch.float64)

    def check_reads() -> None:
        what = f"{torch.get_default_dtype()} {torch.rand(1).item()} {random.random()}"
        raise CheckFailure("check_reads", Property(meaning="-", causes=()), Seen(what=what))

    checks = [planned(check_leaves, ""), planned(check_reads, "")]
    assert differing(checks) == []
