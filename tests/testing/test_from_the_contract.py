"""The suite raises no false alarm over variants whose author has not read it."""

from __future__ import annotations

import dataclasses

import pytest
from tests.testing.correct import SOFTMAX, Plain
from tests.testing.from_the_contract import ChannelConvolution, LandmarkMeans, Retention
from torch import Tensor

from polyattn import FeatureMapAttention, Inputs, Mask, SequenceAttention
from polyattn.testing import CheckFailure, Status, check_class


class ZeroesClosedPixels(ChannelConvolution):
    """What stands at a closed pixel is nobody's business."""

    def attend(self, x: Tensor, keep: Tensor | None) -> Tensor:
        out = super().attend(x, keep)
        return out if keep is None else out.masked_fill(~keep[:, None], 0.0)


@pytest.mark.parametrize(
    "variant", [LandmarkMeans, Retention, ChannelConvolution, ZeroesClosedPixels]
)
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


class IgnoresCausal(Plain):
    """A claim copied from elsewhere: neither the code nor its definition knows of it."""

    capabilities = dataclasses.replace(
        SOFTMAX, masks={"causal", "padding"}, state="none", exactness="own kernel"
    )

    def keep(self, mask: Mask, logits: Tensor) -> Tensor | None:
        return super().keep(mask.without("causal"), logits)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        return super().reference(q, k, v, mask.without("causal"), inputs)


def test_who_ignores_causal_hears_so_first() -> None:
    with pytest.raises(CheckFailure, match="which lies after it") as caught:
        check_class(IgnoresCausal)
    assert caught.value.check == "check_causality_by_gradient"
