"""Attention that is wrong in one way each: values, masks, rows, heads, gradients, strides."""

from __future__ import annotations

import torch
from tests.testing.correct import Plain
from torch import Tensor

from polyattn import Inputs, Mask, kit


class ScaleOfTheModel(Plain):
    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT * (q.shape[1] * q.shape[-1]) ** -0.5


class SoftmaxOverQueries(Plain):
    def weights(self, logits: Tensor, keep: Tensor | None) -> Tensor:
        return kit.masked_softmax(logits.mT, None if keep is None else keep.mT).mT


class DetachedKeys(Plain):
    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return super().logits(q, k.detach())


class ScaleSharedWithItsReference(Plain):
    def scale_for(self, head_dim: int) -> float:
        return 1 / head_dim

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT * self.scale_for(q.shape[-1])


class RoundedLogits(Plain):
    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        narrow = torch.float64 if q.dtype == torch.float64 else torch.bfloat16
        return (q @ k.mT * q.shape[-1] ** -0.5).to(narrow).to(kit.accumulation_dtype(q.dtype))


class SummedInHalf(Plain):
    """Adds the values one by one in the dtype of the inputs."""

    def out(self, weights: Tensor, v: Tensor) -> Tensor:
        total = v.new_zeros(*weights.shape[:3], v.shape[3])
        for j in range(v.shape[2]):
            total = total + 8 * (weights[..., j, None] * v[:, :, j, None]) - 0
            total = total + 300 - 300 if v.dtype != torch.float64 else total
        return total / 8


class Epsilon(Plain):
    def weights(self, logits: Tensor, keep: Tensor | None) -> Tensor:
        odds = logits.exp() if keep is None else logits.exp() * keep
        return odds / (odds.sum(-1, keepdim=True) + 1e-6)


class MaskedAfterSoftmax(Plain):
    def weights(self, logits: Tensor, keep: Tensor | None) -> Tensor:
        weights = logits.softmax(-1)
        return weights if keep is None else weights * keep


class SqueezedSingleKey(Plain):
    def out(self, weights: Tensor, v: Tensor) -> Tensor:
        return (weights.squeeze() @ v.squeeze()).reshape(*weights.shape[:3], v.shape[3])


class TableOfWidths(Plain):
    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        known = {width: width**-0.5 for width in (2, 3, 4, 8, 16, 32, 64)}
        return q @ k.mT * known[q.shape[-1]]


class LevelOfTheBatch(Plain):
    """Takes one maximum for all samples, heads and rows, with an epsilon for rows that vanish."""

    def weights(self, logits: Tensor, keep: Tensor | None) -> Tensor:
        odds = (logits - logits.detach().max()).exp()
        odds = odds if keep is None else odds * keep
        return odds / (odds.sum(-1, keepdim=True) + 1e-9)


class CentredOnTheBatch(Plain):
    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return super().logits(q - q.mean(0, keepdim=True), k)


class HeadsViewedAsLengths(Plain):
    def out(self, weights: Tensor, v: Tensor) -> Tensor:
        out = weights @ v
        return out.transpose(1, 2).reshape(out.shape)


class CentredOnTheHeads(Plain):
    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return super().logits(q - q.mean(1, keepdim=True), k)


class TilesTheMask(Plain):
    """Flattens batch and heads and repeats the mask in the other order."""

    def keep(self, mask: Mask, logits: Tensor) -> Tensor | None:
        keep = super().keep(mask, logits)
        if keep is None or keep.shape[:2] != (logits.shape[0], 1):
            return keep
        return keep[:, 0].repeat(logits.shape[1], 1, 1).reshape(logits.shape[:2] + keep.shape[2:])


class MaskOfTheFirstHead(Plain):
    def keep(self, mask: Mask, logits: Tensor) -> Tensor | None:
        keep = super().keep(mask, logits)
        return None if keep is None else keep[:, :1]


class InvertsTheMask(Plain):
    def keep(self, mask: Mask, logits: Tensor) -> Tensor | None:
        keep = super().keep(mask, logits)
        return None if keep is None else ~keep


class BiasAsBoolean(Plain):
    def bias(self, mask: Mask, logits: Tensor) -> Tensor | None:
        return None


class BiasTimesScale(Plain):
    def bias(self, mask: Mask, logits: Tensor) -> Tensor | None:
        bias = super().bias(mask, logits)
        return None if bias is None else bias * 0.5


class TakesTensorsForMasks(Plain):
    def forward(self, q, k, v, mask=None, inputs=None):  # type: ignore[no-untyped-def]
        if isinstance(mask, Tensor):
            mask = Mask.dense(mask.bool().expand(q.shape[0], q.shape[1], -1, -1)[..., :1, :1])
        return super().forward(q, k, v, mask, inputs or {})


class PaddingSetToZero(Plain):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        if mask.real is not None:
            k, v = (x * mask.real[:, None, :, None] for x in (k, v))
        return super().attend(q, k, v, mask.without("padding"), inputs)


class PaddingOfTheFirstSample(Plain):
    def keep(self, mask: Mask, logits: Tensor) -> Tensor | None:
        keep = super().keep(mask, logits)
        return None if keep is None or mask.real is None else keep[:1]


class PaddingDroppedUnderCausal(Plain):
    def keep(self, mask: Mask, logits: Tensor) -> Tensor | None:
        if mask.parts >= {"causal", "padding"}:
            mask = mask.without("padding")
        return super().keep(mask, logits)


class MasksOred(Plain):
    def keep(self, mask: Mask, logits: Tensor) -> Tensor | None:
        keep = super().keep(mask, logits)
        if mask.kept and mask.prefix is not None:
            rest = super().keep(mask.only("dense"), logits)
            assert keep is not None
            assert rest is not None
            keep = super().keep(mask.without("dense"), logits) | rest
        return keep


class ClosedByMinus1e4(Plain):
    def weights(self, logits: Tensor, keep: Tensor | None) -> Tensor:
        if keep is not None:
            logits = logits + torch.where(keep, 0.0, -1e4).to(logits.dtype)
        return logits.softmax(-1)


class FilledWithMinus1e4(Plain):
    def weights(self, logits: Tensor, keep: Tensor | None) -> Tensor:
        if keep is not None:
            logits = logits.masked_fill(~keep, -1e4)
        return logits.softmax(-1)


class MaximumBeforeTheMask(Plain):
    def weights(self, logits: Tensor, keep: Tensor | None) -> Tensor:
        odds = (logits - logits.detach().amax(-1, keepdim=True)).exp()
        odds = odds if keep is None else odds.masked_fill(~keep, 0.0)
        return kit.safe_divide(odds, odds.sum(-1, keepdim=True))


class NaNForEmptyRows(Plain):
    def weights(self, logits: Tensor, keep: Tensor | None) -> Tensor:
        if keep is not None:
            logits = logits.masked_fill(~keep, -torch.inf)
        return logits.softmax(-1)


class CleanedAfterwards(NaNForEmptyRows):
    def out(self, weights: Tensor, v: Tensor) -> Tensor:
        return (weights @ v).nan_to_num(0.0)


class MeanForEmptyRows(Plain):
    def weights(self, logits: Tensor, keep: Tensor | None) -> Tensor:
        if keep is not None:
            logits = logits.masked_fill(~keep, torch.finfo(logits.dtype).min)
        return logits.softmax(-1)


class TilesKeyHeads(Plain):
    def spread(self, x: Tensor, heads: int) -> Tensor:
        return x.repeat(1, heads // x.shape[1], 1, 1)


class GradientOfOneHeadPerGroup(Plain):
    def spread(self, x: Tensor, heads: int) -> Tensor:
        group = heads // x.shape[1]
        wide = x.repeat_interleave(group, dim=1)
        first = torch.arange(heads) % group == 0
        return torch.where(first[:, None, None], wide, wide.detach())


class ReusesHeadsThatDoNotDivide(Plain):
    def forward(self, q, k, v, mask=None, inputs=None):  # type: ignore[no-untyped-def]
        if q.shape[1] % k.shape[1]:
            owner = torch.arange(q.shape[1]) % k.shape[1]
            k, v = k[:, owner], v[:, owner]
        return super().forward(q, k, v, mask, inputs or {})


class DetachedNormaliser(Plain):
    def weights(self, logits: Tensor, keep: Tensor | None) -> Tensor:
        right = super().weights(logits, keep)
        closed = logits if keep is None else logits.masked_fill(~keep, -torch.inf)
        top = closed.detach().amax(-1, keepdim=True)
        odds = (closed - torch.where(top == -torch.inf, 0.0, top)).exp()
        wrong = kit.safe_divide(odds, odds.sum(-1, keepdim=True).detach())
        return wrong + (right - wrong).detach()


class BiasWithoutGradient(Plain):
    def bias(self, mask: Mask, logits: Tensor) -> Tensor | None:
        bias = super().bias(mask, logits)
        return None if bias is None else bias.detach()


class ReadsMemoryInOrder(Plain):
    """Takes every tensor for contiguous, as a kernel that is given a pointer does."""

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return super().logits(in_order(q), in_order(k))


class ReadsGradientsInOrder(Plain):
    def out(self, weights: Tensor, v: Tensor) -> Tensor:
        return _ReadInOrder.apply(weights @ v)


class _ReadInOrder(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> Tensor:
        return in_order(grad)


def in_order(x: Tensor) -> Tensor:
    """The numbers as they lie in memory, whatever the strides say."""
    strides = torch.empty(x.shape, device="meta").stride()
    room = x.untyped_storage().nbytes() // x.element_size() - x.storage_offset()
    if room < x.numel():
        return x.contiguous().flatten()[:1].expand(x.shape)
    return x.as_strided(x.shape, strides, x.storage_offset())


RAISES = frozenset({TableOfWidths})
"""Their fault is that they raise; of all others something wrong must be seen."""

CAUGHT: tuple[tuple[type[Plain], str], ...] = (
    (ScaleOfTheModel, "check_matches_reference"),
    (SoftmaxOverQueries, "check_matches_reference"),
    (DetachedKeys, "check_matches_reference"),
    (ScaleSharedWithItsReference, "check_matches_loop"),
    (ScaleOfTheModel, "check_matches_loop"),
    (RoundedLogits, "check_low_precision_error"),
    (SummedInHalf, "check_low_precision_error"),
    (Epsilon, "check_rows_sum_to_one"),
    (MaskedAfterSoftmax, "check_rows_sum_to_one"),
    (SqueezedSingleKey, "check_degenerate_sizes"),
    (TableOfWidths, "check_degenerate_sizes"),
    (LevelOfTheBatch, "check_batch_independence"),
    (CentredOnTheBatch, "check_batch_independence"),
    (PaddingOfTheFirstSample, "check_batch_independence"),
    (HeadsViewedAsLengths, "check_head_independence_and_order"),
    (CentredOnTheHeads, "check_head_independence_and_order"),
    (TilesTheMask, "check_mask_broadcast_shapes"),
    (MaskOfTheFirstHead, "check_mask_broadcast_shapes"),
    (InvertsTheMask, "check_mask_polarity_and_dtype"),
    (BiasAsBoolean, "check_mask_polarity_and_dtype"),
    (BiasTimesScale, "check_mask_polarity_and_dtype"),
    (TakesTensorsForMasks, "check_mask_polarity_and_dtype"),
    (PaddingSetToZero, "check_padding_equals_truncation"),
    (PaddingOfTheFirstSample, "check_padding_equals_truncation"),
    (PaddingDroppedUnderCausal, "check_causal_with_padding"),
    (MasksOred, "check_causal_with_padding"),
    (ClosedByMinus1e4, "check_masked_logits_cannot_win"),
    (FilledWithMinus1e4, "check_masked_logits_cannot_win"),
    (MaximumBeforeTheMask, "check_masked_logits_cannot_win"),
    (NaNForEmptyRows, "check_fully_masked_rows"),
    (CleanedAfterwards, "check_fully_masked_rows"),
    (MeanForEmptyRows, "check_fully_masked_rows"),
    (TilesKeyHeads, "check_gqa_equals_repeated_kv"),
    (GradientOfOneHeadPerGroup, "check_gqa_equals_repeated_kv"),
    (ReusesHeadsThatDoNotDivide, "check_gqa_equals_repeated_kv"),
    (DetachedNormaliser, "check_gradcheck"),
    (BiasWithoutGradient, "check_gradcheck"),
    (ReadsMemoryInOrder, "check_noncontiguous"),
    (ReadsGradientsInOrder, "check_noncontiguous"),
)
"""Each with the check that must catch it, by name."""
