"""What authors of variants share: the places where a masked row turns into NaN if written naively.

Cleaning an output afterwards leaves NaN in the gradients; so the emptied row is dealt with inside
the softmax or the division, where its gradient is made zero as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NoReturn

import torch
from torch import Tensor

from polyattn.capabilities import Refusal
from polyattn.errors import Unsupported


def masked_softmax(logits: Tensor, keep: Tensor | None = None) -> Tensor:
    """Softmax over the last dimension in which closed positions have weight exactly zero.

    logits: (..., L, S), any -inf closes as well. keep: bool, broadcastable, True = may attend.
    Returns: (..., L, S); a row without a visible key is zeros, with zero gradients.
    """
    if keep is not None:
        logits = logits.masked_fill(~keep, -torch.inf)
    top = logits.detach().amax(dim=-1, keepdim=True)
    top = top.masked_fill(top == -torch.inf, 0.0)
    weights = (logits - top).exp()
    return safe_divide(weights, weights.sum(dim=-1, keepdim=True))


def safe_divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    """``numerator / denominator``, and zero with zero gradients where the denominator is zero.

    Shapes broadcast. No epsilon: every other quotient is exact.
    """
    empty = denominator == 0
    quotient = numerator / denominator.masked_fill(empty, 1.0)
    return quotient.masked_fill(empty, 0.0)


def merge_by_lse(parts: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Join attention over disjoint sets of keys into attention over their union.

    parts: pairs of output (..., L, Dv) and log-sum-exp of its logits (..., L); -inf where a
    part sees nothing. Returns: the same pair for the union. Raises: ValueError without parts.
    """
    if not parts:
        raise ValueError("merge_by_lse: expected at least one (output, lse) pair, got none")
    lse = torch.stack([lse for _, lse in parts])
    top = lse.detach().amax(dim=0)
    top = top.masked_fill(top == -torch.inf, 0.0)
    odds = (lse - top).exp()
    summed = odds.sum(dim=0)
    shares = safe_divide(odds, summed)
    # The logarithm of an empty sum is never formed: its gradient would be inf * 0.
    empty = summed == 0
    total = summed.masked_fill(empty, 1.0).log().masked_fill(empty, -torch.inf) + top
    merged = torch.stack([out for out, _ in parts]).mul(shares.unsqueeze(-1)).sum(dim=0)
    return merged, total


def repeat_heads(x: Tensor, heads: int) -> Tensor:
    """(B, Hkv, S, D) -> (B, heads, S, D): each key head serves ``heads / Hkv`` neighbours."""
    groups = heads // x.shape[1]
    return x if groups == 1 else x.repeat_interleave(groups, dim=1)


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """float32 for the half types, which neither hold large logits nor long sums; else itself."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def as_given(x: Tensor) -> AbstractContextManager[object]:
    """Inside an operator of its own: dtypes are those of the inputs.

    Autocast would change them between two steps, and between the forward and backward pass.
    """
    kind = x.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


def first_derivatives_only(label: str) -> Callable[..., NoReturn]:
    """A backward for an operator that is itself a backward: refuses, in one line."""

    def refuse(ctx: Any, *grads: Tensor) -> NoReturn:
        way_out = "take first derivatives, or use a variant of plain operations such as dense"
        refusal = Refusal("double_backward", "required", "first derivatives only", way_out)
        raise Unsupported(label, (refusal,))

    return refuse
