"""Attention that is wrong about order: the future, windows, blocks, decoding."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from tests.testing.correct import Plain
from torch import Tensor

from polyattn import Inputs, Mask, State


class StrictCausal(Plain):
    """j < i, but for the first row, which would see nothing."""

    def keep(self, mask: Mask, logits: Tensor) -> Tensor | None:
        keep = super().keep(mask, logits)
        if keep is None or mask.prefix is None:
            return keep
        queries, keys = logits.shape[2:]
        own = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries - 1)
        own[0] = True
        return keep & own


class AlignedAtTheFirstKey(Plain):
    def keep(self, mask: Mask, logits: Tensor) -> Tensor | None:
        if mask.prefix is None:
            return super().keep(mask, logits)
        rest = super().keep(mask.without("causal"), logits)
        first = torch.ones(logits.shape[2:], dtype=torch.bool).tril()
        return first if rest is None else rest & first


class CausalForgottenForFewQueries(Plain):
    def keep(self, mask: Mask, logits: Tensor) -> Tensor | None:
        if logits.shape[2] < logits.shape[3]:
            mask = mask.without("causal")
        return super().keep(mask, logits)


class CausalByBlock(Plain):
    """A query sees the whole block of four that it lies in."""

    def keep(self, mask: Mask, logits: Tensor) -> Tensor | None:
        if mask.prefix is None:
            return super().keep(mask, logits)
        queries, keys = logits.shape[2:]
        rows = torch.arange(queries)[:, None] + keys - queries
        seen = torch.arange(keys) < (rows // 4 + 1) * 4
        rest = super().keep(mask.without("causal"), logits)
        return seen if rest is None else rest & seen


class LeakOfTheLoud(Plain):
    """A detached maximum over all keys: no gradient, no effect until something is loud."""

    def out(self, weights: Tensor, v: Tensor) -> Tensor:
        loud = v.detach().abs().amax((2, 3), keepdim=True)
        return weights @ v + (loud - 8.0).clamp(min=0.0)


class ScaleByLength(Plain):
    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return super().logits(q, k) * (1 + 1e-3 * k.shape[2])


class LastPartOfABlockDropped(Plain):
    """Keys beyond the last whole block of 16 are never read."""

    def keep(self, mask: Mask, logits: Tensor) -> Tensor | None:
        keys = logits.shape[3]
        read = torch.arange(keys) < max(keys // 16 * 16, min(keys, 16))
        keep = super().keep(mask, logits)
        return read.expand(logits.shape[2:]) if keep is None else keep & read


class PaddedToABlockUnmasked(Plain):
    """Pads to a multiple of 16 with zero keys, which count in the softmax."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        missing = -k.shape[2] % 16 if k.shape[2] > 16 else 0
        if mask.parts - {"causal"} or not missing or q.shape[2] != k.shape[2]:
            return super().attend(q, k, v, mask, inputs)
        q, k, v = (torch.nn.functional.pad(x, (0, 0, missing, 0)) for x in (q, k, v))
        return super().attend(q, k, v, mask, inputs)[:, :, missing:]


class WindowOneTooWide(Plain):
    def keep(self, mask: Mask, logits: Tensor) -> Tensor | None:
        if mask.span is not None and mask.span[0] is not None:
            wider = (mask.span[0] + 1, mask.span[1])
            mask = dataclasses.replace(mask, span=wider)
        return super().keep(mask, logits)


class WindowByBlocks(Plain):
    """Rounds the left edge down to a multiple of 4."""

    def keep(self, mask: Mask, logits: Tensor) -> Tensor | None:
        keep = super().keep(mask, logits)
        if keep is None or mask.span is None:
            return keep
        before = torch.nn.functional.pad(keep, (0, -keep.shape[3] % 4))
        blocks = before.reshape(*before.shape[:3], -1, 4).any(-1).repeat_interleave(4, -1)
        queries, keys = logits.shape[2:]
        past = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
        return keep | (blocks[..., :keys] & past)


class PatternOfItsOwnIgnored(Plain):
    """Declares a window in its options and sees one key less on the left."""

    class Config(Plain.Config):
        left: int = 3
        right: int = 0

    def keep(self, mask: Mask, logits: Tensor) -> Tensor | None:
        own = Mask.window(self.config.left - 1, self.config.right)
        return super().keep(mask & own, logits)

    def pattern(self, queries: int, keys: int, *, device: torch.device) -> Tensor | None:
        own = Mask.window(self.config.left - 1, self.config.right)
        keep = own.keep(queries, keys, device=device)
        assert keep is not None
        return keep[0, 0]


class DecodesWithoutOffset(Plain):
    """In a step the queries are taken for the first positions."""

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, state: Any, mask: Mask, inputs: Inputs
    ) -> tuple[Tensor, State]:
        held, over_all, state = state.append({"k": k, "v": v}, mask, q)
        keys = held["k"].shape[2]
        first = torch.ones(q.shape[2], keys, dtype=torch.bool).tril()
        closed = over_all.without("causal") & Mask.dense(first)
        return self.attend(q, held["k"], held["v"], closed, inputs), state


class DecodesWithOneKeyTooFew(Plain):
    """The first key of all falls out of the state."""

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, state: Any, mask: Mask, inputs: Inputs
    ) -> tuple[Tensor, State]:
        held, over_all, state = state.append({"k": k, "v": v}, mask, q)
        keys = held["k"].shape[2]
        if keys > q.shape[2]:
            late = torch.arange(keys) > 0
            over_all = over_all & Mask.dense(late.expand(q.shape[2], -1).clone())
        return self.attend(q, held["k"], held["v"], over_all, inputs), state


class DecodesWithoutGradient(Plain):
    def step(
        self, q: Tensor, k: Tensor, v: Tensor, state: Any, mask: Mask, inputs: Inputs
    ) -> tuple[Tensor, State]:
        out, state = super().step(q, k, v, state, mask, inputs)
        return out + 0 * q.sum() + (out.detach() - out) * 0.5, state


class ForgetsPaddingWhileDecoding(Plain):
    def step(
        self, q: Tensor, k: Tensor, v: Tensor, state: Any, mask: Mask, inputs: Inputs
    ) -> tuple[Tensor, State]:
        held, over_all, state = state.append({"k": k, "v": v}, mask, q)
        if over_all.real is not None and over_all.real.shape[1] > q.shape[2]:
            over_all = over_all.without("padding")
        return self.attend(q, held["k"], held["v"], over_all, inputs), state


class PaddingOfTheNewestChunkOnly(Plain):
    """What was padded in earlier chunks counts as real."""

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, state: Any, mask: Mask, inputs: Inputs
    ) -> tuple[Tensor, State]:
        held, over_all, state = state.append({"k": k, "v": v}, mask, q)
        if over_all.real is not None:
            real = over_all.real.clone()
            real[:, : real.shape[1] - q.shape[2]] = True
            over_all = dataclasses.replace(over_all, real=real)
        return self.attend(q, held["k"], held["v"], over_all, inputs), state


CAUGHT: tuple[tuple[type[Plain], str], ...] = (
    (StrictCausal, "check_causality_by_gradient"),
    (AlignedAtTheFirstKey, "check_causality_by_gradient"),
    (CausalByBlock, "check_causality_by_gradient"),
    (LeakOfTheLoud, "check_causality_by_perturbation"),
    (CausalByBlock, "check_causality_by_perturbation"),
    (AlignedAtTheFirstKey, "check_causal_alignment"),
    (CausalForgottenForFewQueries, "check_causal_alignment"),
    (ScaleByLength, "check_prefix_consistency"),
    (CausalByBlock, "check_prefix_consistency"),
    (LastPartOfABlockDropped, "check_length_not_multiple_of_block"),
    (PaddedToABlockUnmasked, "check_length_not_multiple_of_block"),
    (WindowOneTooWide, "check_window_support_by_gradient"),
    (WindowByBlocks, "check_window_support_by_gradient"),
    (PatternOfItsOwnIgnored, "check_window_support_by_gradient"),
    (DecodesWithoutOffset, "check_decode_equals_parallel"),
    (DecodesWithOneKeyTooFew, "check_decode_equals_parallel"),
    (DecodesWithoutGradient, "check_decode_equals_parallel"),
    (ForgetsPaddingWhileDecoding, "check_cache_left_padding"),
    (PaddingOfTheNewestChunkOnly, "check_cache_left_padding"),
)
"""Each with the check that must catch it, by name."""
