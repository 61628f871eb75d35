"""Softmax attention written from its formula, without matmul and without softmax.

    out_i = sum_j w_ij v_j / sum_j w_ij,    w_ij = exp(scale <q_i, k_j> + bias_ij) if keep_ij else 0

Twice: over Python numbers, which shares nothing with any library; and with elementwise tensor
operations, for gradients. Rows that see no key give zeros. Source: Vaswani et al., 1706.03762.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor


def loop_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    keep: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Attention over Python numbers: q (B, H, L, D), k (B, Hkv, S, D), v (B, Hkv, S, Dv).

    ``keep`` and ``bias`` broadcast to (B, H, L, S). Returns float64 (B, H, L, Dv).
    """
    batch, heads, queries, _ = q.shape
    group = heads // k.shape[1]
    full = (batch, heads, queries, k.shape[2])
    kept = None if keep is None else keep.expand(full).tolist()
    added = None if bias is None else bias.expand(full).double().tolist()
    rows_q, rows_k, rows_v = (x.double().tolist() for x in (q, k, v))
    out = torch.zeros(batch, heads, queries, v.shape[3], dtype=torch.float64)
    for b in range(batch):
        for h in range(heads):
            keys, values = rows_k[b][h // group], rows_v[b][h // group]
            for i in range(queries):
                logits = [
                    scale * math.fsum(x * y for x, y in zip(rows_q[b][h][i], key, strict=True))
                    + (added[b][h][i][j] if added else 0.0)
                    for j, key in enumerate(keys)
                    if kept is None or kept[b][h][i][j]
                ]
                seen = [x for j, x in enumerate(values) if kept is None or kept[b][h][i][j]]
                if seen:
                    out[b, h, i] = torch.tensor(_mean(logits, seen), dtype=torch.float64)
    return out


def _mean(logits: list[float], values: list[list[float]]) -> list[float]:
    """The mean of ``values`` weighted by the exponentials of ``logits``."""
    top = max(logits)
    if top == -math.inf:
        return [0.0] * len(values[0])
    weights = [math.exp(x - top) for x in logits]
    total = math.fsum(weights)
    columns: Any = zip(*values, strict=True)
    return [
        math.fsum(w * x for w, x in zip(weights, column, strict=True)) / total for column in columns
    ]


def elementwise_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    keep: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """The same in tensor operations that autograd follows, in the dtype of q.

    Shapes as in ``loop_attention``; k, v may have fewer heads than q. Returns (B, H, L, Dv).
    """
    if k.shape[1] != q.shape[1]:
        owner = torch.arange(q.shape[1]) // (q.shape[1] // k.shape[1])
        k, v = k[:, owner], v[:, owner]
    logits = (q.unsqueeze(3) * k.unsqueeze(2)).sum(-1) * scale
    open_ = torch.ones_like(logits, dtype=torch.bool)
    if keep is not None:
        open_ = open_ & keep
    if bias is not None:
        open_ = open_ & (bias != -math.inf)
        # where, not addition: -inf would meet a zero gradient and give NaN.
        logits = logits + torch.where(open_, bias.to(logits.dtype), 0.0)
    # A closed key must not enter the maximum: with it, the open ones could all round to zero.
    top = logits.detach().masked_fill(~open_, -math.inf)
    top = top.amax(-1, keepdim=True) if top.shape[-1] else top.new_zeros(*top.shape[:-1], 1)
    top = torch.where(top == -math.inf, 0.0, top)
    weights = torch.where(open_, torch.where(open_, logits - top, 0.0).exp(), 0.0)
    total = weights.sum(-1, keepdim=True)
    weights = weights / torch.where(total == 0, 1.0, total)
    return (weights.unsqueeze(-1) * v.unsqueeze(2)).sum(3)
