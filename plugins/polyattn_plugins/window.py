"""Softmax attention within a window: by an option (``local_window``), by the mask (``windowed``).

    out_i = sum_j softmax_j(scale * q_i . k_j) v_j
    over the keys j with  p - left <= j <= p + right,  p = i + S - L,  scale = 1/sqrt(D)

Paper: Beltagy et al., Longformer, https://arxiv.org/abs/2004.05150 (its sliding window).

Deviations:
- ``left`` and ``right`` count the keys beside the query's own; the paper's window of w is w / 2 on
  either side;
- no dilation, no global tokens, no second set of projections for them;
- a query that padding or segments leave without a key gives zeros.

Cost: linear in the length: 4 H D operations for each of the L (left + right + 1) pairs, and an
eighth more, or a half more in the backward pass, for the corners of the chunks. Memory: the output
and a few megabytes; with gradients also q, k and v. Decoding: the last ``left`` keys, in a buffer
of at most twice that.

When not to use it: where a token must reach beyond layers x left keys; where the window is nearly
as long as the sequence (plain attention is then as fast); on other devices than the CPU, where
this kernel has not been tried.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pydantic
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from polyattn import (
    Call,
    Capabilities,
    Inputs,
    KeyValueState,
    Mask,
    Refusal,
    SequenceAttention,
    Sizes,
    State,
    Support,
    kit,
)
from polyattn_plugins.window_kernel import window_attention

__all__ = ["LocalWindow", "Windowed"]

_CLAIMS = Capabilities(
    masks=frozenset({"causal", "window", "padding", "segments", "alibi"}),
    grouped_heads="native",
    state="sliding",
    devices={"cpu": Support()},
    exactness="exact",
    linear_memory=True,
    rows_sum_to_one=True,
    linear_in_values=True,
    compiles="dynamic",
    exports="dynamic",
)


class LocalWindow(SequenceAttention):
    """Each query sees ``left`` keys before its own position and ``right`` keys after it.

    A mask narrows the window further and never widens it.
    """

    capabilities = _CLAIMS

    class Config(SequenceAttention.Config):
        """``left``, ``right``: keys before and after the query's own. With ``right`` = 0, the
        default, no query sees what comes after it."""

        left: int = pydantic.Field(default=255, ge=0, lt=2**31)
        right: int = pydantic.Field(default=0, ge=0, lt=2**31)

    config: Config

    @classmethod
    def examples(cls) -> tuple[Config, ...]:
        return cls.Config(left=5), cls.Config(left=2, right=3)

    @classmethod
    def capabilities_for(cls, config: Any) -> Capabilities:
        """A window that reaches ahead has to be given whole sequences."""
        return replace(_CLAIMS, state="none") if config.right else _CLAIMS

    def pattern(self, queries: int, keys: int, *, device: torch.device) -> Tensor:
        query = torch.arange(queries, device=device)[:, None] + (keys - queries)
        distance = torch.arange(keys, device=device) - query
        return (distance >= -self.config.left) & (distance <= self.config.right)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        left, right = _narrowed(self.config.left, self.config.right, mask)
        return _attend(q, k, v, mask, left, right, self.scale_for(q.shape[-1]))

    def start(
        self, batch: int, sizes: Sizes | None, *, dtype: torch.dtype, device: torch.device
    ) -> State:
        """An empty state, which will hold the last ``left`` keys and values."""
        return KeyValueState(reach=self.config.left)

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, state: Any, mask: Mask, inputs: Inputs
    ) -> tuple[Tensor, State]:
        if q.shape[2] > 1:
            return super().step(q, k, v, state, mask, inputs)
        held, over_all, state = state.append({"k": k, "v": v}, mask, q)
        keys, values = held["k"], held["v"]
        # One query over few keys takes so little that any further look at the call is felt. Of
        # the keys that came before, the state holds those within the window.
        beyond = over_all.span, over_all.real, over_all.key_ids, over_all.slopes
        if all(part is None for part in beyond):
            return _over_all(q, keys, values, self._scale), state
        return self.attend(q, keys, values, over_all, inputs), state

    def refuse(self, call: Call) -> Iterator[Refusal]:
        right = self.config.right
        ahead = None if call.window is None else call.window[1]
        yield from _refuse_prefix(call, right if ahead is None else min(right, ahead))

    def refuse_lengths(
        self, queries: int, keys: int, window: tuple[int | None, int | None] | None
    ) -> Iterable[Refusal]:
        """More queries than keys: some would have no position among the keys."""
        if queries <= keys:
            return ()
        way_out = "give at least as many keys as queries, which are the last of them"
        return (Refusal("length", f"L = {queries}, S = {keys}", "L <= S", way_out),)


class Windowed(SequenceAttention):
    """Softmax attention under a mask with a window, at the cost of the window.

    Takes masks whose window has two ends (causal is the end on the right) and is narrower than
    the keys; refuses all others, which the other members of ``softmax`` answer.
    """

    capabilities = replace(_CLAIMS, requires=frozenset({"window"}), state="none")

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        keys = k.shape[2]
        left, right = _narrowed(keys, keys, mask)
        return _attend(q, k, v, mask, left, right, self.scale_for(q.shape[-1]))

    def refuse(self, call: Call) -> Iterator[Refusal]:
        if call.window is None or call.parts is None:
            return
        left, right = call.window
        if left is None or (right is None and "causal" not in call.parts):
            way_out = "set the other end too, or use sdpa"
            yield Refusal("window", (left, right), "windows with two ends", way_out)
        yield from _refuse_prefix(call, 1 if right is None else right)

    def refuse_lengths(
        self, queries: int, keys: int, window: tuple[int | None, int | None] | None
    ) -> Iterable[Refusal]:
        """A window that closes nothing is cheaper without one."""
        seen = sum(side or 0 for side in window or ()) + 1
        if seen < keys:
            return ()
        way_out = "use sdpa, which then is as fast"
        allowed = "more keys than the window has"
        return (Refusal("length", f"{keys} keys, window of {seen}", allowed, way_out),)


def _refuse_prefix(call: Call, right: int) -> Iterator[Refusal]:
    """With right = 0 a prefix lies in the past or out of sight, and changes nothing."""
    if call.prefix and right:
        way_out = "use Mask.causal() without a prefix, or dense or sdpa"
        allowed = "0, or any where no key ahead is in the window"
        yield Refusal("causal prefix", call.prefix, allowed, way_out)


def _narrowed(left: int, right: int, mask: Mask) -> tuple[int, int]:
    """The window within that of the mask, which causality ends at the query itself."""
    before, after = mask.span or (None, None)
    left = left if before is None else min(left, before)
    right = right if after is None else min(right, after)
    return left, right if mask.prefix is None else 0


def _attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, left: int, right: int, scale: float
) -> Tensor:
    """Attention of q (B, H, L, D) over k, v (B, Hkv, S, ...) by the shared kernel."""
    heads, queries = q.shape[1:3]
    if queries == 1:
        # While decoding, keys are many and the newest token sees few: copy none of the others.
        k, v, mask = _last(left + 1, k, v, mask)
        if mask.real is None and mask.key_ids is None and mask.slopes is None:
            return _over_all(q, k, v, scale)
    k, v = kit.repeat_heads(k, heads), kit.repeat_heads(v, heads)
    ids = mask.segment_ids(queries) or (None, None)
    out: Tensor = window_attention(q, k, v, left, right, scale, mask.real, *ids, mask.slopes)
    return out


def _last(keys: int, k: Tensor, v: Tensor, mask: Mask) -> tuple[Tensor, Tensor, Mask]:
    """The last ``keys`` keys, where there are more."""
    if k.shape[2] <= keys:
        return k, v, mask
    seen = slice(k.shape[2] - keys, None)
    real, ids = (None if x is None else x[:, seen] for x in (mask.real, mask.key_ids))
    return k[:, :, seen], v[:, :, seen], replace(mask, real=real, key_ids=ids)


def _over_all(q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> Tensor:
    # A comparison of two dynamic sizes is a symbol, which export rejects as a flag.
    grouped = True if q.shape[1] != k.shape[1] else False  # noqa: SIM210
    out = scaled_dot_product_attention(q, k, v, scale=scale, enable_gqa=grouped)
    return out if out.dtype is q.dtype else out.to(q.dtype)  # Under autocast.
