"""The suite raises no false alarm over variants whose author has not read it."""

from __future__ import annotations

import pytest
from tests.testing.from_the_contract import ChannelConvolution, LandmarkMeans, Retention

from polyattn import FeatureMapAttention, SequenceAttention
from polyattn.testing import Status, check_class

@pytest.mark.parametrize("variant", [LandmarkMeans, Retention, ChannelConvolution])
def test_a_variant_written_from_the_contract_passes(
    variant: type[SequenceAttention] | type[FeatureMapAttention],
) -> None:
    results = check_class(variant, on_fail="collect")
    # What takes seconds is listed as not run.
    wrong = Status.FAILED, Status.ERROR, Status.DOES_NOT_HOLD
    failed = [result for result in results if result.status in wrong]
    assert not failed, "\n\n".join(
        f"{r.id}: {r.status}\n{r.failure or r.error or r.reason}" for r in failed
    )
    assert any(result.status is Status.PASSED for result in results)
