"""Logits of `additive`, forward and backward, each as one operator of torch.

The hidden layer has E numbers for each pair of query and key. Here a block of queries is taken at a
time, and the backward pass makes its hidden layer anew.

Letters: B batch, H heads, L queries, S keys, E hidden width.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from polyattn.kit import first_derivatives_only

_NUMBERS = 1 << 18  # of the hidden layer of one block: 1 MB in float32, which stays in cache


@torch.library.custom_op("polyattn_plugins::additive_logits", mutates_args=())
def additive_logits(a: Tensor, b: Tensor, w: Tensor) -> Tensor:
    """w . tanh(a_i + b_j): (B, H, L, S), of a (B, H, L, E), b (B, H, S, E) and w (H, E)."""
    out = a.new_empty(*a.shape[:3], b.shape[2])
    for rows, hidden in _blocks(a, b):
        out[:, :, rows] = (hidden @ w[:, None, :, None]).squeeze(-1)
    return out


@torch.library.custom_op("polyattn_plugins::additive_logits_backward", mutates_args=())
def additive_logits_backward(
    grad: Tensor, a: Tensor, b: Tensor, w: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of a, b and w, given that of the logits, (B, H, L, S)."""
    da, db, dw = torch.empty_like(a), torch.zeros_like(b), torch.zeros_like(w)
    for rows, hidden in _blocks(a, b):
        g = grad[:, :, rows, :, None]
        dw += (g.mT @ hidden).sum((0, 2, 3))
        slope = hidden.square_().neg_().add_(1).mul_(g)
        da[:, :, rows] = slope.sum(3)
        db += slope.sum(2)
    return da.mul_(w[:, None]), db.mul_(w[:, None]), dw


def _blocks(a: Tensor, b: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Some queries at a time, and tanh(a_i + b_j) of them: (B, H, some, S, E)."""
    size = max(1, _NUMBERS // b.numel())
    for start in range(0, a.shape[2], size):
        rows = slice(start, start + size)
        yield rows, (a[:, :, rows, None] + b[:, :, None]).tanh_()


@additive_logits.register_fake
def _(a: Tensor, b: Tensor, w: Tensor) -> Tensor:
    return a.new_empty(*a.shape[:3], b.shape[2])


@additive_logits_backward.register_fake
def _(grad: Tensor, a: Tensor, b: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(a), torch.empty_like(b), torch.empty_like(w)


def _keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
    return tuple(additive_logits_backward(grad, *ctx.saved_tensors))


additive_logits.register_autograd(_gradients, setup_context=_keep_for_backward)
additive_logits_backward.register_autograd(first_derivatives_only("additive attention"))
