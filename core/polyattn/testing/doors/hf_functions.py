"""An attention function in the style of transformers, called as transformers calls it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class StandIn(nn.Module):
    """What such a function reads of the attention layer that calls it."""

    is_causal: bool
    num_key_value_groups: int
    layer_idx: int
    head_dim: int
    scaling: float
    attention_dropout: float
    sliding_window: int | None
    config: LayerConfig


@dataclasses.dataclass
class LayerConfig:
    """What such a function reads of the model's config."""

    num_attention_heads: int
    num_key_value_heads: int
    hidden_size: int
    head_dim: int
    attention_dropout: float = 0.0
    sliding_window: int | None = None
    _attn_implementation: str = "polyattn_door"


def stand_in(q: Tensor, k: Tensor, *, is_causal: bool = False, training: bool = False) -> StandIn:
    """The layer for q (B, H, L, D) and k (B, Hkv, S, D)."""
    heads, key_heads, width = q.shape[1], k.shape[1], q.shape[3]
    layer = StandIn()
    layer.is_causal = is_causal
    layer.num_key_value_groups = heads // key_heads
    layer.layer_idx = 0
    layer.head_dim = width
    layer.scaling = width**-0.5
    layer.attention_dropout = 0.0
    layer.sliding_window = None
    layer.config = LayerConfig(heads, key_heads, heads * width, width)
    return layer.train(training)


@dataclasses.dataclass(frozen=True)
class HfFunction:
    """Such a function. transposed: its output is (B, L, H, D), as it should be.

    reads_flag: without a mask it goes by ``module.is_causal``.
    """

    function: Callable[..., Any]
    transposed: bool = True
    reads_flag: bool = False

    def pair(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None = None,
        *,
        is_causal: bool = False,
        scaling: float | None = None,
        dropout: float = 0.0,
        layer: StandIn | None = None,
        **keywords: Any,
    ) -> tuple[Any, Any]:
        """The output (B, H, L, D) and the weights. Raises what it raises."""
        layer = stand_in(q, k, is_causal=is_causal) if layer is None else layer
        scaling = q.shape[-1] ** -0.5 if scaling is None else scaling
        given = lowered(mask)
        got = self.function(layer, q, k, v, given, scaling=scaling, dropout=dropout, **keywords)
        out, weights = got if isinstance(got, tuple | list) and len(got) == 2 else (got, None)
        out = out[0] if isinstance(out, tuple | list) and out else out
        if isinstance(out, Tensor) and out.dim() == 4 and self.transposed:
            out = out.transpose(1, 2)
        return with_empty_rows(out, mask), weights

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, **keywords: Any
    ) -> Any:
        """The output (B, H, L, D) alone."""
        return self.pair(q, k, v, mask, **keywords)[0]


def lowered(mask: Tensor | None) -> Tensor | None:
    """A mask as transformers gives it: of four dimensions, closed by the least finite number."""
    if mask is None:
        return None
    while mask.dim() < 4:
        mask = mask[None]
    if mask.is_floating_point():
        return mask.masked_fill(mask == -torch.inf, torch.finfo(mask.dtype).min)
    return mask


def with_empty_rows(out: Any, mask: Tensor | None) -> Any:
    """Of rows without any key nothing is said in transformers, but that they are finite.

    They count as zeros here; what is NaN stays NaN.
    """
    if mask is None or not isinstance(out, Tensor) or out.dim() != 4:
        return out
    while mask.dim() < 4:
        mask = mask[None]
    closed = mask == -torch.inf if mask.is_floating_point() else ~mask
    if mask.dtype not in (torch.bool,) and not mask.is_floating_point():
        return out
    empty = closed.all(-1, keepdim=True)
    if not bool(empty.any()):
        return out
    return out * (~empty).to(out.dtype)


def heads_first(found: HfFunction) -> Callable[..., Any]:
    """It as a function of (q, k, v) with a mask, and with a causal flag where it reads one."""
    if found.reads_flag:

        def flagged(
            q: Tensor,
            k: Tensor,
            v: Tensor,
            attention_mask: Tensor | None = None,
            is_causal: bool = False,
        ) -> Any:
            if is_causal and attention_mask is not None:
                # Where there is a mask it says everything, and module.is_causal is not read.
                raise ValueError("with a mask is_causal says nothing: the mask says it")
            return found(q, k, v, attention_mask, is_causal=is_causal)

        return flagged

    def plain(q: Tensor, k: Tensor, v: Tensor, attention_mask: Tensor | None = None) -> Any:
        return found(q, k, v, attention_mask)

    return plain
