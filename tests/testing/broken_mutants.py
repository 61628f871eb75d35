"""Attention that is wrong in the ways that mutants of the built-in variants were found to be."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from tests.testing.broken_maps import PlainGate
from tests.testing.correct import SOFTMAX, Plain
from tests.testing.correct_kinds import Featured
from torch import Tensor

from polyattn import Inputs, KeyValueState, Mask, Options, Sizes, State, kit


class AnswersInTheDtypeOfTheState(Plain):
    """Sums of half types are kept in float32, and a step forgets the way back."""

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, state: Any, mask: Mask, inputs: Inputs
    ) -> tuple[Tensor, State]:
        out, state = super().step(q, k, v, state, mask, inputs)
        return out.to(torch.promote_types(q.dtype, torch.float32)), state


class RemembersInHalf(Plain):
    """Keys are rounded to bfloat16 before they are remembered, to save memory."""

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, state: Any, mask: Mask, inputs: Inputs
    ) -> tuple[Tensor, State]:
        if q.dtype != torch.float64:
            k = k.to(torch.bfloat16).to(k.dtype)
        return super().step(q, k, v, state, mask, inputs)


class SumsInHalf(Featured):
    """The state is kept in the dtype of the tokens, to save memory; its sums swallow them."""

    def start(
        self, batch: int, sizes: Sizes | None, *, dtype: torch.dtype, device: torch.device
    ) -> State:
        state = super().start(batch, sizes, dtype=dtype, device=device)
        return self.rounded(state, dtype)

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, state: Any, mask: Mask, inputs: Inputs
    ) -> tuple[Tensor, State]:
        exact = kit.accumulation_dtype(q.dtype)
        out, state = super().step(q, k, v, self.rounded(state, exact), mask, inputs)
        return out, self.rounded(state, q.dtype)

    def rounded(self, state: Any, dtype: torch.dtype) -> State:
        return state.advance(0, {name: x.to(dtype) for name, x in state.tensors.items()})


class SumsTheNormaliserInHalf(SumsInHalf):
    def rounded(self, state: Any, dtype: torch.dtype) -> State:
        return state.advance(0, {**state.tensors, "z": state.tensors["z"].to(dtype)})


class TakesOneHeadForOneToken(Plain):
    """A short path for a single token, which sees all keys, asks for the wrong axis."""

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, state: Any, mask: Mask, inputs: Inputs
    ) -> tuple[Tensor, State]:
        held, over_all, state = state.append({"k": k, "v": v}, mask, q)
        if q.shape[1] == 1:
            over_all = over_all.without("causal")
        return self.attend(q, held["k"], held["v"], over_all, inputs), state


class SqueezesSingleHeads(Plain):
    def step(
        self, q: Tensor, k: Tensor, v: Tensor, state: Any, mask: Mask, inputs: Inputs
    ) -> tuple[Tensor, State]:
        out, state = super().step(q, k, v, state, mask, inputs)
        return out.squeeze(1), state


class StartsFromItsOwnSizes(Plain):
    def start(
        self, batch: int, sizes: Sizes | None, *, dtype: torch.dtype, device: torch.device
    ) -> State:
        assert self.require_sizes().heads
        return KeyValueState()


class StepsByItsOwnSizes(Plain):
    def step(
        self, q: Tensor, k: Tensor, v: Tensor, state: Any, mask: Mask, inputs: Inputs
    ) -> tuple[Tensor, State]:
        heads = 1 if self.sizes is None else self.sizes.heads
        q = q[:, :heads].repeat(1, q.shape[1] // heads, 1, 1)
        return super().step(q, k, v, state, mask, inputs)


class PrefixIgnored(Plain):
    def keep(self, mask: Mask, logits: Tensor) -> Tensor | None:
        if mask.prefix:
            mask = dataclasses.replace(mask, prefix=0)
        return super().keep(mask, logits)


class PrefixFromTheFirstQuery(Plain):
    """Right where L = S; else the keys before the first query are counted again."""

    def keep(self, mask: Mask, logits: Tensor) -> Tensor | None:
        if mask.prefix:
            mask = dataclasses.replace(mask, prefix=mask.prefix + logits.shape[3] - logits.shape[2])
        return super().keep(mask, logits)


class PrefixUnheardOf(Plain):
    """Neither the code nor its definition has heard of prefixes."""

    capabilities = dataclasses.replace(SOFTMAX, exactness="own kernel")

    def keep(self, mask: Mask, logits: Tensor) -> Tensor | None:
        return super().keep(_without_prefix(mask), logits)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        return super().reference(q, k, v, _without_prefix(mask), inputs)


def _without_prefix(mask: Mask) -> Mask:
    return dataclasses.replace(mask, prefix=0) if mask.prefix else mask


class WidthRoundedDown(PlainGate):
    class Config(Options):
        ratio: float = 0.25
        min_width: int = 1

    def hidden(self, channels: int) -> int:
        return max(self.config.min_width, int(channels * self.config.ratio))


class RatioUnread(WidthRoundedDown):
    """Always the least width."""

    def hidden(self, channels: int) -> int:
        return self.config.min_width


class TilesKeyHeadsOfLongSequences(Plain):
    def spread(self, x: Tensor, heads: int) -> Tensor:
        if x.shape[2] <= 64:
            return super().spread(x, heads)
        return x.repeat(1, heads // x.shape[1], 1, 1)


class OneHeadOfAGroupBeyondABlock(Plain):
    """The gradient of a long sequence reaches key heads through one head of each group."""

    def spread(self, x: Tensor, heads: int) -> Tensor:
        wide = super().spread(x, heads)
        if x.shape[2] <= 64:
            return wide
        first = torch.arange(heads)[:, None, None] % (heads // x.shape[1]) == 0
        return torch.where(first, wide, wide.detach())


class ThirtyTwoHeadsAtATime(Plain):
    """Heads of all samples are taken 32 at a time; of the last, fewer ones, nothing is kept."""

    def out(self, weights: Tensor, v: Tensor) -> Tensor:
        out = super().out(weights, v).flatten(0, 1)
        whole = max(out.shape[0] // 32 * 32, min(out.shape[0], 32))
        kept = torch.arange(out.shape[0])[:, None, None] < whole
        return torch.where(kept, out, 0.0).view(*weights.shape[:3], -1)


class GradientOfTheLastPart(Plain):
    """Where heads are many the backward pass goes in parts of 64 keys, and forgets all but one."""

    def spread(self, x: Tensor, heads: int) -> Tensor:
        wide = super().spread(x, heads)
        if x.shape[0] * heads <= 32:
            return wide
        late = torch.arange(x.shape[2])[:, None] >= x.shape[2] - 64
        return torch.where(late, wide, wide.detach())


class QueriesThatVanish(Plain):
    """Weights that are products of features, of which those of small queries round to zero."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        out = super().attend(q, k, v, mask, inputs)
        size = q.detach().amax(-1, keepdim=True).float().clamp(max=0).exp()
        return out * (size / (size + 1e-30)).to(out.dtype)


class SmallQueriesVanishWhileDecoding(Plain):
    def step(
        self, q: Tensor, k: Tensor, v: Tensor, state: Any, mask: Mask, inputs: Inputs
    ) -> tuple[Tensor, State]:
        out, state = super().step(q, k, v, state, mask, inputs)
        return torch.where(q.amax(-1, keepdim=True) < -87, 0.0, out), state


class DividesByZeroWhileDecoding(Plain):
    """A row that sees no key is 0 / 0, for single tokens."""

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, state: Any, mask: Mask, inputs: Inputs
    ) -> tuple[Tensor, State]:
        held, over_all, state = state.append({"k": k, "v": v}, mask, q)
        out = self.attend(q, held["k"], held["v"], over_all, inputs)
        if q.shape[2] == 1 and over_all.real is not None:
            seen = over_all.real.any(1).to(out.dtype)[:, None, None, None]
            out = out * seen / seen
        return out, state


class MeanOfPaddingWhileDecoding(Plain):
    """A row that sees no key is answered with the mean of the values."""

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, state: Any, mask: Mask, inputs: Inputs
    ) -> tuple[Tensor, State]:
        held, over_all, state = state.append({"k": k, "v": v}, mask, q)
        out = self.attend(q, held["k"], held["v"], over_all, inputs)
        if over_all.real is not None:
            seen = over_all.real.any(1)[:, None, None, None]
            mean = held["v"].mean(2, keepdim=True)
            out = torch.where(seen, out, kit.repeat_heads(mean, q.shape[1]))
        return out, state


class SlopesClaimedAndUnread(Plain):
    """Neither its code nor its definition has heard of alibi."""

    def bias(self, mask: Mask, logits: Tensor) -> Tensor | None:
        return super().bias(mask.without("alibi"), logits)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        return super().reference(q, k, v, mask.without("alibi"), inputs)


class SegmentsClaimedAndUnread(Plain):
    def keep(self, mask: Mask, logits: Tensor) -> Tensor | None:
        return super().keep(mask.without("segments"), logits)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        return super().reference(q, k, v, mask.without("segments"), inputs)


class FewNumbersAtATime(Plain):
    """Rows are taken as many at a time as a buffer of 2^19 numbers holds; the rest is forgotten."""

    def out(self, weights: Tensor, v: Tensor) -> Tensor:
        out = super().out(weights, v)
        rows = max(1, (1 << 19) // (out.shape[0] * out.shape[1] * out.shape[3]))
        kept = torch.arange(out.shape[2])[:, None] < rows
        return torch.where(kept, out, 0.0)


class FirstRowsAgain(Plain):
    """What does not fit into the buffer gets what its first rows got."""

    def out(self, weights: Tensor, v: Tensor) -> Tensor:
        out = super().out(weights, v)
        rows = max(1, (1 << 19) // (out.shape[0] * out.shape[1] * out.shape[3]))
        return out[:, :, torch.arange(out.shape[2]) % rows] if out.shape[2] > rows else out


class EverythingTogetherIgnored(Plain):
    """A step for which all kinds of masks are given at once is taken for one without any."""

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, state: Any, mask: Mask, inputs: Inputs
    ) -> tuple[Tensor, State]:
        held, over_all, state = state.append({"k": k, "v": v}, mask, q)
        parts = over_all.span, over_all.real, over_all.key_ids, over_all.slopes
        if all(part is not None for part in parts):
            over_all = Mask.causal()
        return self.attend(q, held["k"], held["v"], over_all, inputs), state


class SlopesOfLateHeadsLearnTwice(Plain):
    """Heads are taken eight at a time, and the sums of all but the first eight count twice."""

    def bias(self, mask: Mask, logits: Tensor) -> Tensor | None:
        if mask.slopes is not None:
            twice = mask.slopes - mask.slopes.detach()
            late = torch.arange(mask.slopes.shape[0]) >= 8
            mask = dataclasses.replace(mask, slopes=mask.slopes + twice * late)
        return super().bias(mask, logits)


class PrefixLostUnderAnOpenWindow(Plain):
    """Causal is taken for the window's missing right end, prefix or not."""

    def keep(self, mask: Mask, logits: Tensor) -> Tensor | None:
        if mask.prefix and mask.span is not None and mask.span[1] is None:
            mask = dataclasses.replace(mask, prefix=0)
        return super().keep(mask, logits)


class SamplesTakenForKeyHeads(Plain):
    """Whether heads are grouped is asked of the number of samples, while decoding."""

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, state: Any, mask: Mask, inputs: Inputs
    ) -> tuple[Tensor, State]:
        if q.shape[0] == k.shape[1] != q.shape[1]:
            q = q[:, : k.shape[1]].repeat_interleave(q.shape[1] // k.shape[1], dim=1)
        return super().step(q, k, v, state, mask, inputs)


RAISES = frozenset({StartsFromItsOwnSizes})
"""Their fault is that they raise; of all others something wrong must be seen."""


class ReadsKeysInOrder(Plain):
    """Queries and values are read by their strides; keys, where they alone are strided, are not."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        if k.stride(3) != 1 and q.stride(3) == v.stride(3) == 1:
            k = torch.as_strided(k, k.shape, torch.empty(k.shape).stride(), k.storage_offset())
        return super().attend(q, k, v, mask, inputs)


class CausalForgottenForTwo(Plain):
    """Two tokens are taken for one, which sees everything, where there is another mask as well."""

    def keep(self, mask: Mask, logits: Tensor) -> Tensor | None:
        rest = mask.without("causal")
        if logits.shape[2] == logits.shape[3] == 2 and not rest.is_full:
            mask = rest
        return super().keep(mask, logits)


CAUGHT = (
    (AnswersInTheDtypeOfTheState, "check_decode_low_precision"),
    (RemembersInHalf, "check_decode_low_precision"),
    (SumsInHalf, "check_decode_half_sums"),
    (SumsTheNormaliserInHalf, "check_decode_half_sums"),
    (TakesOneHeadForOneToken, "check_decode_degenerate_sizes"),
    (SqueezesSingleHeads, "check_decode_degenerate_sizes"),
    (StartsFromItsOwnSizes, "check_state_sizes_given_late"),
    (StepsByItsOwnSizes, "check_state_sizes_given_late"),
    (PrefixIgnored, "check_causal_prefix"),
    (PrefixFromTheFirstQuery, "check_causal_prefix"),
    (PrefixUnheardOf, "check_causal_prefix"),
    (TilesKeyHeadsOfLongSequences, "check_grouped_heads_at_length"),
    (OneHeadOfAGroupBeyondABlock, "check_grouped_heads_at_length"),
    (ThirtyTwoHeadsAtATime, "check_many_heads_at_length"),
    (GradientOfTheLastPart, "check_many_heads_at_length"),
    (QueriesThatVanish, "check_rows_sum_for_small_queries"),
    (SmallQueriesVanishWhileDecoding, "check_rows_sum_for_small_queries"),
    (DividesByZeroWhileDecoding, "check_decode_rows_without_keys"),
    (MeanOfPaddingWhileDecoding, "check_decode_rows_without_keys"),
    (SlopesClaimedAndUnread, "check_mask_part_counts"),
    (SegmentsClaimedAndUnread, "check_mask_part_counts"),
    (WidthRoundedDown, "check_fm_hidden_width"),
    (RatioUnread, "check_fm_hidden_width"),
    (EverythingTogetherIgnored, "check_decode_equals_parallel"),
    (SlopesOfLateHeadsLearnTwice, "check_wide_values_at_length"),
    (FewNumbersAtATime, "check_wide_values_at_length"),
    (FirstRowsAgain, "check_wide_values_at_length"),
    (PrefixLostUnderAnOpenWindow, "check_causal_prefix"),
    (SamplesTakenForKeyHeads, "check_decode_degenerate_sizes"),
    (ReadsKeysInOrder, "check_noncontiguous"),
    (CausalForgottenForTwo, "check_causal_with_padding"),
)
