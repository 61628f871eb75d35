"""Sparse attention and heads that hear each other, wrong; the first three with a definition that
agrees."""

from __future__ import annotations

import dataclasses

import torch
from tests.testing.correct_sparse import Sparsemax, SquaredReLU, TalkingHeads
from torch import Tensor

from polyattn import Mask


class NeverItself(SquaredReLU):
    """The causal mask is strict: j < i."""

    def seen(self, mask: Mask, logits: Tensor) -> Tensor:
        seen = super().seen(mask, logits)
        queries, keys = logits.shape[2:]
        if "causal" not in mask.parts:
            return seen
        return seen & torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries - 1)


class OneKeyTooFew(Sparsemax):
    """The farthest key of a window has no weight, whatever it holds."""

    def seen(self, mask: Mask, logits: Tensor) -> Tensor:
        seen = super().seen(mask, logits)
        if mask.span is None or mask.span[0] is None:
            return seen
        queries, keys = logits.shape[2:]
        distance = torch.arange(queries)[:, None] + keys - queries - torch.arange(keys)
        return seen & (distance < max(mask.span[0], 1))


class NoPrefix(Sparsemax):
    def seen(self, mask: Mask, logits: Tensor) -> Tensor:
        return super().seen(dataclasses.replace(mask, prefix=0) if mask.prefix else mask, logits)


class MixesTheOtherWay(TalkingHeads):
    """The matrix transposed: each head is heard where it should hear."""

    def mixed(self, mix: Tensor, x: Tensor) -> Tensor:
        return super().mixed(mix.mT, x)


class SquaresInHalf(SquaredReLU):
    def weights(self, logits: Tensor, keep: Tensor | None) -> Tensor:
        return super().weights(logits.half(), keep)


class RowsTurned(SquaredReLU):
    """A block of rows is put back in the place of another."""

    def out(self, weights: Tensor, v: Tensor) -> Tensor:
        out = super().out(weights, v)
        return out.roll(-out.shape[2] % 8, dims=2)


CAUGHT = (
    (NeverItself, "check_causality_by_gradient"),
    (OneKeyTooFew, "check_window_support_by_gradient"),
    (NoPrefix, "check_causal_prefix"),
    (MixesTheOtherWay, "check_head_independence_and_order"),
    (SquaresInHalf, "check_fp16_range"),
    (RowsTurned, "check_length_contract"),
)
