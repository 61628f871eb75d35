"""Logits of `additive`, forward and backward, each as one operator of torch.

The hidden layer has E numbers for each pair of query and key. Here a few queries are taken at a
time, and the backward pass makes their hidden layer anew.

Letters: B batch, H heads, L queries, S keys, E hidden width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from polyattn.kit import first_derivatives_only

_TOGETHER = 8  # queries: more leave the cache, fewer are felt where all is small


@torch.library.custom_op("polyattn_plugins::additive_logits", mutates_args=())
def additive_logits(a: Tensor, b: Tensor, w: Tensor) -> Tensor:
    """w . tanh(a_i + b_j): (B, H, L, S), of a (B, H, L, E), b (B, H, S, E) and w (H, E)."""
    out = a.new_empty(*a.shape[:3], b.shape[2])
    for a_p, out_p in zip(*map(_in_parts, (a, out)), strict=True):
        out_p.copy_((_hidden(a_p, b) @ w[:, None, :, None]).squeeze(-1))
    return out


@torch.library.custom_op("polyattn_plugins::additive_logits_backward", mutates_args=())
def additive_logits_backward(
    grad: Tensor, a: Tensor, b: Tensor, w: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of a, b and w, given that of the logits, (B, H, L, S)."""
    da, db, dw = torch.empty_like(a), torch.zeros_like(b), torch.zeros_like(w)
    for a_p, da_p, grad_p in zip(*map(_in_parts, (a, da, grad)), strict=True):
        hidden, g = _hidden(a_p, b), grad_p[..., None]
        dw += (g.mT @ hidden).sum((0, 2, 3))
        slope = hidden.square_().neg_().add_(1).mul_(g)
        da_p.copy_(slope.sum(3))
        db += slope.sum(2)
    return da.mul_(w[:, None]), db.mul_(w[:, None]), dw


def _in_parts(x: Tensor) -> Sequence[Tensor]:
    """Views of x (B, H, L, any), a few queries at a time."""
    parts: Sequence[Tensor] = torch.split(x, _TOGETHER, 2)
    return parts


def _hidden(a: Tensor, b: Tensor) -> Tensor:
    """tanh(a_i + b_j): (B, H, some, S, E), of some queries."""
    return (a[:, :, :, None] + b[:, :, None]).tanh_()


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
