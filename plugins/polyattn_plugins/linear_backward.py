"""Backward passes of the operators in `linear_kernel`, operators themselves.

With out_i = n_i / d_i and g the gradient of out: dn_i = g_i / d_i and dd_i = -dn_i . out_i. Then
weights w_ij = phi(q_i) . phi(k_j) receive dn_i . v_j + dd_i, and everything else follows by sums
over the past (for queries) or over the future (for keys and values), kept as running states. The
letters are those of `linear_chunks`.
"""

from __future__ import annotations

from itertools import repeat

import torch
from torch import Tensor

from polyattn_plugins.linear_chunks import Chunks, cut, like, sums


@torch.library.custom_op("polyattn::linear_absorb_backward", mutates_args=())
def absorb_backward(
    k: Tensor, v: Tensor, keep: Tensor | None, gs: Tensor, gz: Tensor
) -> tuple[Tensor, Tensor]:
    chunks = Chunks(gs, keep)
    total, norm = sums(gs, gz)
    gk, gv = k.new_empty(k.shape), v.new_empty(v.shape)
    parts = map(cut, (k, v, gk, gv))
    for k_c, v_c, gk_c, gv_c, w_c in zip(*parts, chunks.weights(), strict=False):
        mapped = chunks.keys(k_c, w_c)
        to_keys = chunks.product("to_keys", chunks.plain("values", v_c), total.mT).add_(norm)
        gv_c.copy_(chunks.product("to_values", mapped, total).view(gv_c.shape))
        gk_c.copy_(to_keys.mul_(mapped.clamp_(max=1)).view(gk_c.shape))
    return gk, gv


@torch.library.custom_op("polyattn::linear_read_backward", mutates_args=())
def read_backward(
    q: Tensor, s: Tensor, z: Tensor, out: Tensor, dens: Tensor, g: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    chunks = Chunks(s)
    total, norm = sums(s, z)
    gs, gz = torch.zeros_like(total), torch.zeros_like(norm)
    gq = q.new_empty(q.shape)
    parts = map(chunks.per_query, (q, gq, out, dens, g))
    for q_c, gq_c, out_c, den_c, g_c in zip(*parts, strict=True):
        mapped = chunks.queries(q_c)
        to_num, to_den = chunks.divided(g_c, out_c, den_c)
        gs.baddbmm_(mapped.mT, to_num)
        gz += (mapped * to_den).sum(1, keepdim=True)
        to_rows = chunks.product("to_rows", to_num, total.mT).addcmul_(to_den, norm)
        gq_c.copy_(to_rows.mul_(mapped.clamp_(max=1)).view(gq_c.shape))
    return gq, gs.view(s.shape), gz.view(z.shape)


@torch.library.custom_op("polyattn::linear_scan_to_queries", mutates_args=())
def scan_to_queries(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keep: Tensor | None,
    s: Tensor,
    z: Tensor,
    out: Tensor,
    dens: Tensor,
    g: Tensor,
) -> Tensor:
    """Gradient of q: forward through time, with the state that each query has read."""
    chunks = Chunks(s, keep)
    total, norm = sums(s, z)
    gq = q.new_empty(q.shape)
    parts = (*map(chunks.per_query, (q, gq, out, dens, g)), *map(cut, (k, v)))
    for q_c, gq_c, out_c, den_c, g_c, k_c, v_c, w_c in zip(*parts, chunks.weights(), strict=False):
        mapped_q, mapped_k = chunks.queries(q_c), chunks.keys(k_c, w_c)
        values = chunks.plain("values", v_c)
        to_num, to_den = chunks.divided(g_c, out_c, den_c)
        to_scores = chunks.scores("to_scores", to_num, values, to_den)
        to_rows = chunks.product("to_rows", to_num, total.mT).addcmul_(to_den, norm)
        to_rows.baddbmm_(to_scores, mapped_k).mul_(mapped_q.clamp_(max=1))
        gq_c.copy_(to_rows.view(gq_c.shape))
        total.baddbmm_(mapped_k.mT, values)
        norm += mapped_k.sum(1, keepdim=True)
    return gq


@torch.library.custom_op("polyattn::linear_scan_to_keys", mutates_args=())
def scan_to_keys(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keep: Tensor | None,
    out: Tensor,
    dens: Tensor,
    g: Tensor,
    gs: Tensor,
    gz: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of k, v and the first state: back through time, summing what queries ask for."""
    chunks = Chunks(gs, keep)
    total, norm = sums(gs, gz)
    gk, gv = k.new_empty(k.shape), v.new_empty(v.shape)
    weights = repeat(None) if keep is None else reversed([*chunks.weights()])
    parts = (
        *map(chunks.per_query, (q, out, dens, g)),
        *map(cut, (k, v, gk, gv)),
    )
    backwards = map(reversed, parts)
    for q_c, out_c, den_c, g_c, k_c, v_c, gk_c, gv_c, w_c in zip(*backwards, weights, strict=False):
        mapped_q, mapped_k = chunks.queries(q_c), chunks.keys(k_c, w_c)
        values = chunks.plain("values", v_c)
        to_num, to_den = chunks.divided(g_c, out_c, den_c)
        to_values = chunks.product("to_values", mapped_k, total)
        to_values.baddbmm_(chunks.scores("scores", mapped_q, mapped_k).mT, to_num)
        to_keys = chunks.product("to_keys", values, total.mT).add_(norm)
        to_keys.baddbmm_(chunks.scores("to_scores", to_num, values, to_den).mT, mapped_q)
        gv_c.copy_(to_values.view(gv_c.shape))
        gk_c.copy_(to_keys.mul_(mapped_k.clamp_(max=1)).view(gk_c.shape))
        total.baddbmm_(mapped_q.mT, to_num)
        norm += mapped_q.mul_(to_den).sum(1, keepdim=True)
    return gk, gv, total.view(gs.shape), norm.view(gz.shape)


@absorb_backward.register_fake
def _(k: Tensor, v: Tensor, keep: Tensor | None, gs: Tensor, gz: Tensor) -> tuple[Tensor, ...]:
    return like(k, v)


@read_backward.register_fake
def _(q: Tensor, s: Tensor, z: Tensor, out: Tensor, dens: Tensor, g: Tensor) -> tuple[Tensor, ...]:
    return like(q, s, z)


@scan_to_queries.register_fake
def _(q: Tensor, *others: Tensor | None) -> Tensor:
    return q.new_empty(q.shape)


@scan_to_keys.register_fake
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keep: Tensor | None,
    out: Tensor,
    dens: Tensor,
    g: Tensor,
    gs: Tensor,
    gz: Tensor,
) -> tuple[Tensor, ...]:
    return like(k, v, gs, gz)
