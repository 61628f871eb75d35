"""Backward passes of the operators in `linear_kernel`, operators themselves.

With out_i = n_i / d_i and g the gradient of out: dn_i = g_i / d_i and dd_i = -dn_i . out_i. Then
weights w_ij = phi(q_i) . phi(k_j) receive dn_i . v_j + dd_i, and everything else follows by sums
over the past (for queries) or over the future (for keys and values), kept as running states. The
letters are those of `linear_chunks`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from polyattn.kit import first_derivatives_only
from polyattn_plugins.linear_chunks import Chunks, like, sums


@torch.library.custom_op("polyattn::linear_absorb_backward", mutates_args=())
def absorb_backward(
    k: Tensor, v: Tensor, keep: Tensor | None, gs: Tensor, gz: Tensor
) -> tuple[Tensor, Tensor]:
    chunks = Chunks(gs, k.shape[2], keep, whole=True)
    total, norm = sums(gs, gz)
    gk, gv = k.new_empty(k.shape), v.new_empty(v.shape)
    parts = map(chunks.per_key, (k, v, gk, gv))
    for k_p, v_p, gk_p, gv_p, w_p in zip(*parts, chunks.weights(), strict=True):
        mapped = chunks.keys(k_p, w_p)
        to_keys = chunks.product("to_keys", chunks.plain("values", v_p), total.mT).add_(norm)
        gv_p.copy_(chunks.product("to_values", mapped, total).view(gv_p.shape))
        gk_p.copy_(to_keys.mul_(mapped.clamp_(max=1)).view(gk_p.shape))
    return gk, gv


@torch.library.custom_op("polyattn::linear_read_backward", mutates_args=())
def read_backward(
    q: Tensor, s: Tensor, z: Tensor, out: Tensor, dens: Tensor, g: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    chunks = Chunks(s, q.shape[2], whole=True)
    total, norm = sums(s, z)
    gs, gz = torch.zeros_like(total), torch.zeros_like(norm)
    gq = q.new_empty(q.shape)
    parts = map(chunks.per_query, (q, gq, out, dens, g))
    for q_p, gq_p, out_p, den_p, g_p in zip(*parts, strict=True):
        mapped = chunks.queries(q_p)
        to_num, to_den = chunks.divided(g_p, out_p, den_p)
        gs.baddbmm_(mapped.mT, to_num)
        gz += (mapped * to_den).sum(1, keepdim=True)
        to_rows = chunks.product("to_rows", to_num, total.mT).addcmul_(to_den, norm)
        gq_p.copy_(to_rows.mul_(mapped.clamp_(max=1)).view(gq_p.shape))
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
    chunks = Chunks(s, k.shape[2], keep)
    total, gq = sums(s, z), q.new_empty(q.shape)
    parts = (*map(chunks.per_query, (q, gq, out, dens, g)), *map(chunks.per_key, (k, v)))
    for q_p, gq_p, out_p, den_p, g_p, k_p, v_p, w_p in zip(*parts, chunks.weights(), strict=True):
        mapped_q, mapped_k = chunks.queries(q_p), chunks.keys(k_p, w_p)
        values, gain = chunks.plain("values", v_p), mapped_k.sum(1, keepdim=True)
        to_num, to_den = chunks.divided(g_p, out_p, den_p)
        to_scores = chunks.scores("to_scores", to_num, values, to_den)
        found, norm = chunks.before(total, mapped_k, values, gain)
        to_rows = chunks.product("to_rows", to_num, found.mT).addcmul_(to_den, norm)
        to_rows.baddbmm_(to_scores, mapped_k).mul_(mapped_q.clamp_(max=1))
        gq_p.copy_(to_rows.view(gq_p.shape))
        chunks.after(total, mapped_k, values, gain)
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
    chunks = Chunks(gs, k.shape[2], keep)
    total = sums(gs, gz)
    gk, gv = k.new_empty(k.shape), v.new_empty(v.shape)
    parts = (*map(chunks.per_query, (q, out, dens, g)), *map(chunks.per_key, (k, v, gk, gv)))
    backwards = [*zip(*parts, chunks.weights(), strict=True)][::-1]
    for q_p, out_p, den_p, g_p, k_p, v_p, gk_p, gv_p, w_p in backwards:
        mapped_q, mapped_k = chunks.queries(q_p), chunks.keys(k_p, w_p)
        values = chunks.plain("values", v_p)
        to_num, to_den = chunks.divided(g_p, out_p, den_p)
        gain = (mapped_q * to_den).sum(1, keepdim=True)
        asked, norm = chunks.before(total, mapped_q, to_num, gain, backwards=True)
        to_values = chunks.product("to_values", mapped_k, asked)
        to_values.baddbmm_(chunks.scores("scores", mapped_q, mapped_k).mT, to_num)
        to_keys = chunks.product("to_keys", values, asked.mT).add_(norm)
        to_keys.baddbmm_(chunks.scores("to_scores", to_num, values, to_den).mT, mapped_q)
        gv_p.copy_(to_values.view(gv_p.shape))
        gk_p.copy_(to_keys.mul_(mapped_k.clamp_(max=1)).view(gk_p.shape))
        chunks.after(total, mapped_q, to_num, gain)
    return gk, gv, total[0].view(gs.shape), total[1].view(gz.shape)


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


for _backward in (absorb_backward, read_backward, scan_to_queries, scan_to_keys):
    _backward.register_autograd(first_derivatives_only("linear"))
