"""Attention whose config, range, map, symmetry, dropout or members are not what they claim."""

from __future__ import annotations

import dataclasses
from typing import Any

import pydantic
import torch
from tests.testing.broken import DetachedKeys, HeadsViewedAsLengths
from tests.testing.broken_claims import ClampsValues, DropsByItsOwnGenerator
from tests.testing.broken_in_order import AlignedAtTheFirstKey, ScaleByLength
from tests.testing.broken_reports import PlainKernel
from tests.testing.correct import Plain
from tests.testing.correct_claims import NaNBlind, PlainOperation
from torch import Tensor

from polyattn import Inputs, Mask, kit


class OptionLeftOut(Plain):
    """Written down without one of its options, it is read again as another one."""

    class Config(Plain.Config):
        sharpness: float = pydantic.Field(default=1.0, exclude=True)

    config: Config

    @classmethod
    def examples(cls) -> tuple[Any, ...]:
        return (cls.Config(sharpness=2.0),)


class WritesToItsOptions(Plain):
    class Config(Plain.Config):
        levels: list[float] = pydantic.Field(default=[1.0])

    config: Config

    def build(self) -> None:
        self.config.levels.append(1.0)


class SizesAmongItsOptions(Plain):
    class Config(Plain.Config):
        heads: int = 8


class HidesItsOptions(Plain):
    def extra_repr(self) -> str:
        return f"sizes={self.sizes}"


class ScalesAfterTheProduct(Plain):
    """Logits of the inputs' dtype, which overflow before they are scaled."""

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return (q @ k.mT * q.shape[-1] ** -0.5).to(kit.accumulation_dtype(q.dtype))


class FeaturesInHalf(PlainKernel):
    """Products of features, and their sums, in the dtype of the inputs."""


class NoMaximumTakenOff(Plain):
    def weights(self, logits: Tensor, keep: Tensor | None) -> Tensor:
        odds = logits.exp() if keep is None else logits.exp() * keep
        return kit.safe_divide(odds, odds.sum(-1, keepdim=True))


class ClampsTheMaximum(Plain):
    """Takes off no more than it was thought that logits can have."""

    def weights(self, logits: Tensor, keep: Tensor | None) -> Tensor:
        if keep is not None:
            logits = logits.masked_fill(~keep, -torch.inf)
        odds = (logits - logits.detach().amax(-1, keepdim=True).clamp(-500.0, 500.0)).exp()
        return kit.safe_divide(odds, odds.sum(-1, keepdim=True))


class AnswersInAutocastsDtype(Plain):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        out = super().attend(q, k, v, mask, inputs)
        return out.bfloat16() if torch.is_autocast_enabled("cpu") else out


class MeetsTwoDtypes(Plain):
    """Adds a product to a tensor of the values' dtype, which autocast has not narrowed."""

    def out(self, weights: Tensor, v: Tensor) -> Tensor:
        product = super().out(weights, v)
        return v.new_zeros(product.shape).index_add(0, torch.arange(v.shape[0]), product)


class FeaturesOfBothSigns(PlainKernel):
    """Its rows sum to one, by weights some of which are negative."""

    def phi(self, x: Tensor) -> Tensor:
        return x


class LeavesClosedKeysALittle(Plain):
    def weights(self, logits: Tensor, keep: Tensor | None) -> Tensor:
        weights = super().weights(logits, keep)
        return weights if keep is None else weights + 1e-14 * ~keep


class FavoursItsOwnKey(Plain):
    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return super().logits(q, k) + 1e-6 * torch.eye(q.shape[2], k.shape[2])


class CentredOnTheQueries(Plain):
    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        late = torch.linspace(0, 1, q.shape[2], dtype=q.dtype)[:, None]
        return super().logits(q - 0.1 * (late * q).mean(2, keepdim=True), k)


class MaskOfTheFirstKeys(Plain):
    """Counts the real keys and takes them to be the first ones."""

    def keep(self, mask: Mask, logits: Tensor) -> Tensor | None:
        if mask.real is not None:
            slots = torch.arange(mask.real.shape[1])
            first = slots < mask.real.sum(1, keepdim=True)
            mask = dataclasses.replace(mask, real=first)
        return super().keep(mask, logits)


class KeyOfItsOwn(Plain):
    """One is added to the denominator: a key that nobody gave."""

    def weights(self, logits: Tensor, keep: Tensor | None) -> Tensor:
        odds = logits.exp() if keep is None else logits.exp() * keep
        return odds / (odds.sum(-1, keepdim=True) + 1)


class ClosesTheWeightsAlone(NaNBlind):
    """A weight of 0 times NaN is NaN."""

    def read(self, x: Tensor, seen: Tensor) -> Tensor:
        return x


class ClosesByAFactor(NaNBlind):
    def read(self, x: Tensor, seen: Tensor) -> Tensor:
        return x * seen


class CleansItsOutput(ClosesTheWeightsAlone):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        return super().attend(q, k, v.nan_to_num(0, 0, 0), mask, inputs).nan_to_num()


class _Dropping(torch.autograd.Function):
    """Dropout written by hand, its backward pass wrong in one of two ways."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float, anew: bool) -> Tensor:
        kept = torch.rand_like(x) >= p
        ctx.save_for_backward(kept)
        ctx.p, ctx.anew = p, anew
        return x * kept / (1 - p)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (kept,) = ctx.saved_tensors
        if ctx.anew:
            return grad * (torch.rand_like(grad) >= ctx.p) / (1 - ctx.p), None, None
        return grad * kept, None, None


class DropsAnewInItsBackward(Plain):
    anew = True

    def dropped(self, weights: Tensor) -> Tensor:
        p = self.dropout_p
        return _Dropping.apply(weights, p, self.anew) if p else weights


class ForgetsTheFactorInItsBackward(DropsAnewInItsBackward):
    anew = False


class CountsItsCalls(Plain):
    """A temperature that cools down with every call in training: a recomputed one counts."""

    def build(self) -> None:
        self._calls = 0

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        self._calls += self.training
        return super().logits(q, k) * (1 + 1e-3 * self._calls)


class AlibiLostUnderSegments(Plain):
    def bias(self, mask: Mask, logits: Tensor) -> Tensor | None:
        if mask.key_ids is not None:
            mask = mask.without("alibi")
        return super().bias(mask, logits)


class MemberThatDropsAPart(PlainOperation):
    other = AlibiLostUnderSegments


class MemberOfAnotherAlignment(PlainOperation):
    other = AlignedAtTheFirstKey


class MemberWithoutAGradient(PlainOperation):
    other = DetachedKeys


RAISES = frozenset({MeetsTwoDtypes})
"""Their fault is that they raise; of all others something wrong must be seen."""

CAUGHT: tuple[tuple[type, str], ...] = (
    (OptionLeftOut, "check_config_roundtrip"),
    (WritesToItsOptions, "check_config_roundtrip"),
    (SizesAmongItsOptions, "check_config_roundtrip"),
    (HidesItsOptions, "check_config_roundtrip"),
    (ScalesAfterTheProduct, "check_fp16_range"),
    (FeaturesInHalf, "check_fp16_range"),
    (NoMaximumTakenOff, "check_row_constant_bias"),
    (ClampsTheMaximum, "check_row_constant_bias"),
    (AnswersInAutocastsDtype, "check_autocast"),
    (MeetsTwoDtypes, "check_autocast"),
    (FeaturesOfBothSigns, "check_output_in_value_hull"),
    (HeadsViewedAsLengths, "check_output_in_value_hull"),
    (ClampsValues, "check_weights_agree"),
    (LeavesClosedKeysALittle, "check_weights_agree"),
    (MaskOfTheFirstKeys, "check_key_order"),
    (FavoursItsOwnKey, "check_query_order"),
    (CentredOnTheQueries, "check_query_order"),
    (KeyOfItsOwn, "check_key_duplication_invariance"),
    (ScaleByLength, "check_key_duplication_invariance"),
    (ClosesTheWeightsAlone, "check_masked_payload_ignored"),
    (ClosesByAFactor, "check_masked_payload_ignored"),
    (CleansItsOutput, "check_masked_payload_ignored"),
    (DropsAnewInItsBackward, "check_dropout_gradient"),
    (ForgetsTheFactorInItsBackward, "check_dropout_gradient"),
    (DropsByItsOwnGenerator, "check_checkpointing"),
    (CountsItsCalls, "check_checkpointing"),
    (MemberThatDropsAPart, "check_members_agree"),
    (MemberOfAnotherAlignment, "check_members_agree"),
    (MemberWithoutAGradient, "check_members_agree"),
)
"""Each with the check that must catch it, by name."""
