"""The suite raises no false alarm over variants whose author has not read it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from tests.testing.from_the_contract import ChannelConvolution, LandmarkMeans, Retention

from polyattn import FeatureMapAttention, SequenceAttention
from polyattn.testing import Status, run_checks, subjects_of_class
from polyattn.testing.runner import checks_of

A_HEAD_HAS_A_DECAY = (
    "the decay belongs to the head, so heads that change places change the output; the contract "
    "allows what is given for each head, and a head still depends on its own inputs alone"
)
FALSE_ALARMS: Mapping[str, Mapping[str, str]] = {
    "Retention": {
        "check_head_independence_and_order[defaults]": A_HEAD_HAS_A_DECAY,
        "check_head_independence_and_order[scale=1.0,slowness=0.5]": A_HEAD_HAS_A_DECAY,
    }
}
"""By class: ids of checks that fail and should not, with the reason. Strict: a healed one fails."""


@pytest.mark.parametrize("variant", [LandmarkMeans, Retention, ChannelConvolution])
def test_a_variant_written_from_the_contract_passes(
    variant: type[SequenceAttention] | type[FeatureMapAttention],
) -> None:
    name = variant.__name__
    results = run_checks(
        checks_of(subjects_of_class(name, variant)),
        expected_failures=FALSE_ALARMS.get(name, {}),
        on_fail="collect",
    )
    # What takes seconds is listed as not run.
    wrong = Status.FAILED, Status.ERROR, Status.DOES_NOT_HOLD, Status.XPASSED
    failed = [result for result in results if result.status in wrong]
    assert not failed, "\n\n".join(
        f"{r.id}: {r.status}\n{r.failure or r.error or r.reason}" for r in failed
    )
    assert any(result.status is Status.PASSED for result in results)
