"""Kernels of `linear`: three operators with their own backward.

    absorb(k, v)   the keys enter the state:  s += phi(k)^T v,  z += sum phi(k)
    read(q)        the state is read:         out = phi(q) s / (phi(q) . z)
    scan(q, k, v)  both, causally: query i reads what the keys j <= i have left

They are custom operators, so `torch.compile` sees one node whatever the length.

The letters are those of `linear_chunks`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from polyattn_plugins.linear_backward import (
    absorb_backward,
    read_backward,
    scan_to_keys,
    scan_to_queries,
)
from polyattn_plugins.linear_chunks import Chunks, divide, like, sums


@torch.library.custom_op("polyattn::linear_absorb", mutates_args=())
def absorb(
    k: Tensor, v: Tensor, keep: Tensor | None, s: Tensor, z: Tensor
) -> tuple[Tensor, Tensor]:
    """The state after the keys k (B, K, S, D) and values v (B, K, S, V)."""
    chunks = Chunks(s, k.shape[2], keep, whole=True)
    total, norm = sums(s, z)
    parts = zip(*map(chunks.per_key, (k, v)), chunks.weights(), strict=True)
    for k_p, v_p, w_p in parts:
        mapped = chunks.keys(k_p, w_p)
        total.baddbmm_(mapped.mT, chunks.plain("values", v_p))
        norm += mapped.sum(1, keepdim=True)
    return total.view(s.shape), norm.view(z.shape)


@torch.library.custom_op("polyattn::linear_read", mutates_args=())
def read(q: Tensor, s: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """What q (B, H, L, D) reads, (B, H, L, V), and its denominators (B, H, L, 1)."""
    chunks = Chunks(s, q.shape[2], whole=True)
    total, norm = sums(s, z)
    out, dens = q.new_empty(*q.shape[:3], s.shape[3]), s.new_empty(*q.shape[:3], 1)
    for q_p, out_p, den_p in zip(*map(chunks.per_query, (q, out, dens)), strict=True):
        mapped = chunks.queries(q_p)
        num = chunks.product("num", mapped, total)
        divide(num, mapped.mul_(norm).sum(-1, keepdim=True), out_p, den_p)
    return out, dens


@torch.library.custom_op("polyattn::linear_scan", mutates_args=())
def scan(
    q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, s: Tensor, z: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Causal attention of q on k and v of the same length, after the state (s, z).

    Returns the output (B, H, L, V), its denominators (B, H, L, 1) and the state afterwards.
    """
    chunks = Chunks(s, k.shape[2], keep)
    total = sums(s, z)
    out, dens = q.new_empty(*q.shape[:3], v.shape[3]), s.new_empty(*q.shape[:3], 1)
    parts = (*map(chunks.per_query, (q, out, dens)), *map(chunks.per_key, (k, v)))
    for q_p, out_p, den_p, k_p, v_p, w_p in zip(*parts, chunks.weights(), strict=True):
        mapped_q, mapped_k = chunks.queries(q_p), chunks.keys(k_p, w_p)
        values, gain = chunks.plain("values", v_p), mapped_k.sum(1, keepdim=True)
        scores = chunks.scores("scores", mapped_q, mapped_k)
        found, norm = chunks.before(total, mapped_k, values, gain)
        num = chunks.product("num", mapped_q, found).baddbmm_(scores, values)
        den = scores.sum(-1, keepdim=True).add_(mapped_q.mul_(norm).sum(-1, keepdim=True))
        divide(num, den, out_p, den_p)
        chunks.after(total, mapped_k, values, gain)
    return out, dens, total[0].view(s.shape), total[1].view(z.shape)


@absorb.register_fake
def _(k: Tensor, v: Tensor, keep: Tensor | None, s: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    return like(s, z)


@read.register_fake
def _(q: Tensor, s: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    return q.new_empty(*q.shape[:3], s.shape[3]), s.new_empty(*q.shape[:3], 1)


@scan.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, s: Tensor, z: Tensor
) -> tuple[Tensor, ...]:
    out, dens = q.new_empty(*q.shape[:3], v.shape[3]), s.new_empty(*q.shape[:3], 1)
    return out, dens, *like(s, z)


# torch types the context of autograd as Any.
def _keep_absorb(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs[:3])


def _absorb_gradients(ctx: Any, gs: Tensor, gz: Tensor) -> tuple[Tensor | None, ...]:
    gk, gv = absorb_backward(*ctx.saved_tensors, gs, gz)
    return gk, gv, None, gs, gz


def _keep_read(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs, *output)


def _read_gradients(ctx: Any, g: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    return tuple(read_backward(*ctx.saved_tensors, g))


def _keep_scan(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs, *output[:2])


def _scan_gradients(
    ctx: Any, g: Tensor, _: Tensor, gs: Tensor, gz: Tensor
) -> tuple[Tensor | None, ...]:
    q, k, v, keep, s, z, out, dens = ctx.saved_tensors
    gq = scan_to_queries(q, k, v, keep, s, z, out, dens, g)
    gk, gv, first, norm = scan_to_keys(q, k, v, keep, out, dens, g, gs, gz)
    return gq, gk, gv, None, first, norm


absorb.register_autograd(_absorb_gradients, setup_context=_keep_absorb)
read.register_autograd(_read_gradients, setup_context=_keep_read)
scan.register_autograd(_scan_gradients, setup_context=_keep_scan)
