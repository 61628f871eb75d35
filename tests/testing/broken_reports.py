"""Faults that people have reported of released attention code, planted: masks, order, values, maps.

Which report each of them stands for is said in ``reports.yaml``.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from tests.testing.broken_maps import PlainGate
from tests.testing.correct import Online, Plain
from torch import Tensor
from torch.nn import functional as F

from polyattn import Capabilities, Inputs, Mask, SequenceAttention, State, kit


class LowestNumberCloses(Plain):
    """A bias of finfo.min is taken for a closed key: a row of them has nothing to see."""

    def weights(self, logits: Tensor, keep: Tensor | None) -> Tensor:
        return super().weights(logits.masked_fill(logits < -1e30, -torch.inf), keep)


class PaddingClosesItsRows(Plain):
    """The rows of padded tokens are closed along with their columns."""

    def keep(self, mask: Mask, logits: Tensor) -> Tensor | None:
        keep = super().keep(mask, logits)
        if keep is None or mask.real is None or logits.shape[2] != logits.shape[3]:
            return keep
        return keep & mask.real[:, None, :, None]


class MultipliesByTheBias(Plain):
    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return super().logits(q, k)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        bias = self.bias(mask, self.logits(q, self.spread(k, q.shape[1])))
        if bias is None or "alibi" in mask.parts:
            return super().attend(q, k, v, mask, inputs)
        k, v = self.spread(k, q.shape[1]), self.spread(v, q.shape[1])
        logits = self.logits(q, k) * bias
        return self.out(self.weights(logits, self.keep(mask, logits)).to(v.dtype), v)


class PaddingClosesQueries(Plain):
    """The padding mask gets its axis in the wrong place: it closes rows and no column."""

    def keep(self, mask: Mask, logits: Tensor) -> Tensor | None:
        if mask.real is None or logits.shape[2] != logits.shape[3]:
            return super().keep(mask, logits)
        rows = mask.real[:, None, :, None].expand(-1, -1, -1, logits.shape[3])
        rest = super().keep(mask.without("padding"), logits)
        return rows if rest is None else rest & rows


class MasksOfHeadsInTrainingOnly(Plain):
    """The fast path of evaluation refuses what training takes."""

    def keep(self, mask: Mask, logits: Tensor) -> Tensor | None:
        keep = super().keep(mask, logits)
        if keep is not None and keep.shape[1] > 1 and not self.training:
            raise RuntimeError("only (L, S) and (B, L, S) attention masks are supported")
        return keep


class CausalDroppedUnderPadding(Plain):
    def keep(self, mask: Mask, logits: Tensor) -> Tensor | None:
        if mask.parts >= {"causal", "padding"}:
            mask = mask.without("causal")
        return super().keep(mask, logits)


class SeesTheFuture(Plain):
    """An encoder that is used as a decoder: nobody told it to look back only."""

    def keep(self, mask: Mask, logits: Tensor) -> Tensor | None:
        return super().keep(mask.without("causal"), logits)


class CausalWhileDecodingOnly(Plain):
    """Without a state there is no mask at all."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        return super().attend(q, k, v, mask.without("causal"), inputs)

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, state: Any, mask: Mask, inputs: Inputs
    ) -> tuple[Tensor, State]:
        held, over_all, state = state.append({"k": k, "v": v}, mask, q)
        return Plain.attend(self, q, held["k"], held["v"], over_all, inputs), state


class ClosedBlockPoisonsTheMaximum(Online):
    """A first block without a visible key leaves -inf in the running maximum, and NaN after it."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        out = super().attend(q, k, v, mask, inputs)
        keep = mask.keep(q.shape[2], k.shape[2], q.shape[0], q.shape[1], q.device)
        if keep is None or k.shape[2] <= self.block:
            return out
        first = keep[..., : self.block].any(-1, keepdim=True)
        return torch.where(first | ~keep.any(-1, keepdim=True), out, torch.nan)


class NaNWhereAWindowIsPadding(Plain):
    def weights(self, logits: Tensor, keep: Tensor | None) -> Tensor:
        return super().weights(logits, keep)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        out = super().attend(q, k, v, mask, inputs)
        if not mask.parts >= {"window", "padding"}:
            return out
        keep = mask.keep(q.shape[2], k.shape[2], q.shape[0], q.shape[1], q.device)
        assert keep is not None
        return torch.where(keep.any(-1, keepdim=True), out, torch.nan)


class NeedsWholeBlocks(Plain):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        if k.shape[2] % 16 and k.shape[2] > 16:
            raise RuntimeError(f"shape '[-1, 16]' is invalid for input of size {k.shape[2]}")
        return super().attend(q, k, v, mask, inputs)


class ShorterThanABlockFails(Plain):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        if k.shape[2] < 16 and q.shape[2] == k.shape[2]:
            raise IndexError("index 0 is out of bounds for dimension 0 with size 0")
        return super().attend(q, k, v, mask, inputs)


class NaNGradientOnePastABlock(Plain):
    def out(self, weights: Tensor, v: Tensor) -> Tensor:
        out = super().out(weights, v)
        if v.shape[2] > 1 and v.shape[2] % 16 == 1 and out.requires_grad:
            out.register_hook(lambda grad: grad * torch.nan)
        return out


class FewHeadsDivideByZero(Plain):
    """Heads are dealt out to segments of several lengths: one head alone is dealt to none."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        assert q.shape[1] % (q.shape[1] // 2) == 0 or q.shape[1] == 3
        return super().attend(q, k, v, mask, inputs)


class MaskPaddedOnTheWrongAxis(Plain):
    """Made longer to a multiple of 8, the mask moves along the queries, not along the keys."""

    def keep(self, mask: Mask, logits: Tensor) -> Tensor | None:
        keep = super().keep(mask, logits)
        if keep is None or not mask.kept or keep.shape[2] == 1 or logits.shape[3] % 8 == 0:
            return keep
        return keep.roll(1, dims=2)


class MaskMovedToTheFront(Plain):
    """The sequence is padded at its end and its padding mask at its front."""

    def keep(self, mask: Mask, logits: Tensor) -> Tensor | None:
        if mask.real is not None and mask.real.shape[1] % 8:
            moved = mask.real.roll(-mask.real.shape[1] % 8, dims=1)
            mask = dataclasses.replace(mask, real=moved)
        return super().keep(mask, logits)


class PaddingSkippedForOneSample(Plain):
    def keep(self, mask: Mask, logits: Tensor) -> Tensor | None:
        if logits.shape[0] == 1:
            mask = mask.without("padding")
        return super().keep(mask, logits)


class ShortenedToTheLongest(Plain):
    """The output ends with the last real token of the longest sample."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        out = super().attend(q, k, v, mask, inputs)
        if mask.real is None or q.shape[2] != k.shape[2]:
            return out
        return out[:, :, : int(mask.real.sum(1).max())]


class PaddedRowsZeroInEvaluation(Plain):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        out = super().attend(q, k, v, mask, inputs)
        if mask.real is None or self.training or q.shape[2] != k.shape[2]:
            return out
        return out * mask.real[:, None, :, None]


class NaNForASampleWithoutKeys(Plain):
    """Divides by the number of real keys."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        out = super().attend(q, k, v, mask, inputs)
        if mask.real is None:
            return out
        count = mask.real.sum(1)[:, None, None, None].to(out.dtype)
        return out * (count / count)


class NeedsAnAlignedBias(Plain):
    def bias(self, mask: Mask, logits: Tensor) -> Tensor | None:
        bias = super().bias(mask, logits)
        if bias is not None and bias.shape[-1] % 8:
            raise RuntimeError("attn_bias.stride(-2) % 8 == 0 expected")
        return bias


class NoScaleWithABias(Plain):
    """The path that takes a bias has lost its scale."""

    def bias(self, mask: Mask, logits: Tensor) -> Tensor | None:
        bias = super().bias(mask, logits)
        return None if bias is None else bias + logits.detach() * 0.5


class AttendsAcrossTheBatch(Plain):
    """(B, L, D) given to code that reads (L, B, D)."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        if not mask.is_full or q.shape[2] != k.shape[2]:
            return super().attend(q, k, v, mask, inputs)
        q, k, v = (x.transpose(0, 2) for x in (q, k, v))
        return super().attend(q, k, v, mask, inputs).transpose(0, 2)


class PositionsOfTheBatch(Plain):
    """A table of positions is indexed along the batch."""

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        place = torch.arange(k.shape[0], dtype=k.dtype)[:, None, None, None]
        return super().logits(q, k * (1 + 0.1 * place))


class MapsHeadsTogether(Plain):
    """A map of the width is applied before the heads are split."""

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        mixed = k.transpose(1, 2).flatten(2).roll(1, dims=-1)
        return super().logits(q, mixed.unflatten(-1, (k.shape[1], -1)).transpose(1, 2))


class SoftmaxOverTheBatch(Plain):
    def weights(self, logits: Tensor, keep: Tensor | None) -> Tensor:
        return logits.softmax(0) if keep is None else super().weights(logits, keep)


class SoftmaxOverAnAxisOfOne(Plain):
    """Scores of shape (..., 1) go through a softmax over that last axis: each weight is 1."""

    def weights(self, logits: Tensor, keep: Tensor | None) -> Tensor:
        ones = logits.unsqueeze(-1).softmax(-1).squeeze(-1)
        return ones if keep is None else ones * keep


class CountsOneTokenTooMany(Plain):
    """The counter of tokens seen runs ahead by one: the newest key is taken to lie ahead."""

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, state: Any, mask: Mask, inputs: Inputs
    ) -> tuple[Tensor, State]:
        held, over_all, state = state.append({"k": k, "v": v}, mask, q)
        keys = held["k"].shape[2]
        ahead = torch.ones(q.shape[2], keys, dtype=torch.bool).tril(keys - q.shape[2] - 1)
        ahead[:, 0] = True
        over_all = over_all.without("causal") & Mask.dense(ahead)
        return self.attend(q, held["k"], held["v"], over_all, inputs), state


KERNEL = Capabilities(
    masks={"causal", "padding"},
    exactness="own kernel",
    rows_sum_to_one=True,
    linear_in_values=True,
    devices=Plain.capabilities.devices,
)


class PlainKernel(SequenceAttention):
    """Attention with the feature map elu + 1, as its quadratic form: the broken ones change it."""

    capabilities = KERNEL

    def phi(self, x: Tensor) -> Tensor:
        return torch.where(x > 0, x + 1, torch.exp(torch.where(x > 0, 0, x)))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        keep = mask.keep(q.shape[2], k.shape[2], q.shape[0], q.shape[1], q.device)
        weights = self.phi(q) @ self.phi(k).mT
        weights = weights if keep is None else weights * keep
        return self.divided(weights, v, self.total(weights))

    def total(self, weights: Tensor) -> Tensor:
        return weights.sum(-1, keepdim=True)

    def divided(self, weights: Tensor, v: Tensor, total: Tensor) -> Tensor:
        return kit.safe_divide(weights @ v, total)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        return PlainKernel.attend(_Right(self.config, self.sizes), q, k, v, mask, inputs)


class _Right(PlainKernel):
    """What the reference of a broken one computes with."""


class RoundsSmallFeaturesToZero(PlainKernel):
    """elu(x) + 1, which is 0 from -17.5 on in float32."""

    def phi(self, x: Tensor) -> Tensor:
        return F.elu(x) + 1


class FeaturesThatVanish(PlainKernel):
    """A rectifier: a query whose entries are all negative has a denominator of 0."""

    def phi(self, x: Tensor) -> Tensor:
        return x.relu()


class NormaliserOverTheHeads(PlainKernel):
    """The sum of keys runs along the heads, not along the sequence."""

    def total(self, weights: Tensor) -> Tensor:
        return super().total(weights).cumsum(1)


class ProjectsTheFutureToo(Plain):
    """Keys are mixed along the whole length before a causal mask is laid over them."""

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return super().logits(q, 0.9 * k + 0.1 * k.mean(2, keepdim=True))


class LandmarksOfPadding(Plain):
    """Means of segments count padded keys: a segment of nothing else is NaN."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        out = super().attend(q, k, v, mask, inputs)
        if mask.real is None:
            return out
        tail = mask.real[:, -2:].any(1)[:, None, None, None]
        return torch.where(tail, out, torch.nan)


class OneWidthWhenCompiled(Plain):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        if torch.compiler.is_compiling() and q.shape[3] != v.shape[3]:
            raise RuntimeError("expected query and value of one width")
        return super().attend(q, k, v, mask, inputs)


class DecaysOverPadding(SequenceAttention):
    """Weights fall by a tenth with each slot: a padded one counts, though nothing stands there."""

    capabilities = Capabilities(
        masks={"padding"},
        requires={"causal"},
        exactness="own kernel",
        devices=Plain.capabilities.devices,
    )

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        slots = torch.ones(q.shape[0], k.shape[2], dtype=torch.bool)
        return self.decayed(q, k, v, mask, slots)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        slots = torch.ones(q.shape[0], k.shape[2], dtype=torch.bool)
        return self.decayed(q, k, v, mask, slots if mask.real is None else mask.real)

    def decayed(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, counts: Tensor) -> Tensor:
        keep = mask.keep(q.shape[2], k.shape[2], q.shape[0], q.shape[1], q.device)
        assert keep is not None
        place = counts.expand(q.shape[0], -1).cumsum(1).to(q.dtype)
        distance = (place[:, -q.shape[2] :, None] - place[:, None]).clamp(min=0)
        return ((q @ k.mT) * keep * 0.9 ** distance[:, None]) @ v


class PoolsAFixedSize(PlainGate):
    """A pooling window of 4 pixels, whatever the map."""

    def pooled(self, x: Tensor, keep: Tensor | None) -> Tensor:
        if keep is not None or x.dim() != 4:
            return super().pooled(x, keep)
        pooled = F.avg_pool2d(x, 4)
        return pooled.flatten(2)[:, :, 0]


class TakesMapsToBeSquare(PlainGate):
    def gated(self, x: Tensor, gate: Tensor) -> Tensor:
        if x.dim() == 4 and x.shape[2] > 1:
            x = x.flatten(2).reshape(*x.shape[:2], x.shape[2], x.shape[2])
        return x * gate


RAISES = frozenset(
    {
        MasksOfHeadsInTrainingOnly,
        NeedsWholeBlocks,
        ShorterThanABlockFails,
        FewHeadsDivideByZero,
        NeedsAnAlignedBias,
        OneWidthWhenCompiled,
        PoolsAFixedSize,
    }
)
"""Their fault is that they raise; of all others something wrong must be seen."""

CAUGHT: tuple[tuple[type, str], ...] = (
    (LowestNumberCloses, "check_fully_masked_rows"),
    (PaddingClosesItsRows, "check_causal_with_padding"),
    (MultipliesByTheBias, "check_mask_polarity_and_dtype"),
    (PaddingClosesQueries, "check_padding_equals_truncation"),
    (MasksOfHeadsInTrainingOnly, "check_mask_broadcast_shapes"),
    (CausalDroppedUnderPadding, "check_causality_by_gradient"),
    (SeesTheFuture, "check_causality_by_perturbation"),
    (CausalWhileDecodingOnly, "check_causality_by_gradient"),
    (ClosedBlockPoisonsTheMaximum, "check_length_not_multiple_of_block"),
    (NaNWhereAWindowIsPadding, "check_fully_masked_rows"),
    (NeedsWholeBlocks, "check_length_not_multiple_of_block"),
    (ShorterThanABlockFails, "check_length_not_multiple_of_block"),
    (NaNGradientOnePastABlock, "check_length_not_multiple_of_block"),
    (FewHeadsDivideByZero, "check_output_shape_dtype_device"),
    (MaskPaddedOnTheWrongAxis, "check_mask_broadcast_shapes"),
    (MaskMovedToTheFront, "check_padding_equals_truncation"),
    (PaddingSkippedForOneSample, "check_batch_independence"),
    (ShortenedToTheLongest, "check_batch_independence"),
    (PaddedRowsZeroInEvaluation, "check_matches_reference"),
    (NaNForASampleWithoutKeys, "check_fully_masked_rows"),
    (NeedsAnAlignedBias, "check_matches_reference"),
    (NoScaleWithABias, "check_matches_reference"),
    (AttendsAcrossTheBatch, "check_batch_independence"),
    (PositionsOfTheBatch, "check_batch_independence"),
    (MapsHeadsTogether, "check_head_independence_and_order"),
    (SoftmaxOverTheBatch, "check_rows_sum_to_one"),
    (SoftmaxOverAnAxisOfOne, "check_rows_sum_to_one"),
    (CountsOneTokenTooMany, "check_decode_equals_parallel"),
    (RoundsSmallFeaturesToZero, "check_rows_sum_to_one"),
    (FeaturesThatVanish, "check_rows_sum_to_one"),
    (NormaliserOverTheHeads, "check_matches_reference"),
    (ProjectsTheFutureToo, "check_causality_by_gradient"),
    (LandmarksOfPadding, "check_padding_equals_truncation"),
    (OneWidthWhenCompiled, "check_compile"),
    (DecaysOverPadding, "check_matches_reference"),
    (PoolsAFixedSize, "check_fm_shape_grid"),
    (TakesMapsToBeSquare, "check_fm_shape_grid"),
)
"""Each with the check that must catch it, by name."""
