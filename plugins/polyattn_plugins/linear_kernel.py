"""Kernels of `linear`: three operators with their own backward.

    absorb(k, v)   the keys enter the state:  s += phi(k)^T v,  z += sum phi(k)
    read(q)        the state is read:         out = phi(q) s / (phi(q) . z)
    scan(q, k, v)  both, causally: query i reads what the keys j <= i have left

They are custom operators, so `torch.compile` sees one node whatever the length.

Letters: B batch, H query heads, K key heads, G = H / K, N = B K, L queries, S keys, D head width,
V value width, C chunk. State: s (B, K, D, V), z (B, K, 1, D). `keep` (B, S) is true for real keys.
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
from polyattn_plugins.linear_chunks import Chunks, cut, divide, like, sums


@torch.library.custom_op("polyattn::linear_absorb", mutates_args=())
def absorb(
    k: Tensor, v: Tensor, keep: Tensor | None, s: Tensor, z: Tensor
) -> tuple[Tensor, Tensor]:
    """The state after the keys k (B, K, S, D) and values v (B, K, S, V)."""
    chunks = Chunks(s, keep)
    total, norm = sums(s, z)
    for k_c, v_c, w_c in zip(cut(k), cut(v), chunks.weights(), strict=False):
        mapped = chunks.keys(k_c, w_c)
        total.baddbmm_(mapped.mT, chunks.plain("values", v_c))
        norm += mapped.sum(1, keepdim=True)
    return total.view(s.shape), norm.view(z.shape)


@torch.library.custom_op("polyattn::linear_read", mutates_args=())
def read(q: Tensor, s: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """What q (B, H, L, D) reads, (B, H, L, V), and its denominators (B, H, L, 1)."""
    chunks = Chunks(s)
    total, norm = sums(s, z)
    out, dens = q.new_empty(*q.shape[:3], s.shape[3]), s.new_empty(*q.shape[:3], 1)
    for q_c, out_c, den_c in zip(*map(chunks.per_query, (q, out, dens)), strict=True):
        mapped = chunks.queries(q_c)
        num = chunks.product("num", mapped, total)
        divide(num, mapped.mul_(norm).sum(-1, keepdim=True), out_c, den_c)
    return out, dens


@torch.library.custom_op("polyattn::linear_scan", mutates_args=())
def scan(
    q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, s: Tensor, z: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Causal attention of q on k and v of the same length, after the state (s, z).

    Returns the output (B, H, L, V), its denominators (B, H, L, 1) and the state afterwards.
    """
    chunks = Chunks(s, keep)
    total, norm = sums(s, z)
    out, dens = q.new_empty(*q.shape[:3], v.shape[3]), s.new_empty(*q.shape[:3], 1)
    parts = (*map(chunks.per_query, (q, out, dens)), *map(cut, (k, v)))
    for q_c, out_c, den_c, k_c, v_c, w_c in zip(*parts, chunks.weights(), strict=False):
        mapped_q, mapped_k = chunks.queries(q_c), chunks.keys(k_c, w_c)
        values = chunks.plain("values", v_c)
        scores = chunks.scores("scores", mapped_q, mapped_k)
        num = chunks.product("num", mapped_q, total).baddbmm_(scores, values)
        den = scores.sum(-1, keepdim=True).add_(mapped_q.mul_(norm).sum(-1, keepdim=True))
        divide(num, den, out_c, den_c)
        total.baddbmm_(mapped_k.mT, values)
        norm += mapped_k.sum(1, keepdim=True)
    return out, dens, total.view(s.shape), norm.view(z.shape)


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
