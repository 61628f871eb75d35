"""What is done with logits that are written out: mask, softmax, values.

Letters: B batch, H heads, Hkv key heads, L queries, S keys, Dv value width.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import dropout

from polyattn import Mask, kit

__all__ = ["by_group", "weighted"]


def weighted(
    logits: Tensor, v: Tensor, mask: Mask, dropout_p: float, sink: Tensor | None = None
) -> Tensor:
    """softmax_j(logits_ij + b_ij) v_j: (B, H, L, Dv), of logits (B, H, L, S) and v (B, Hkv, S, Dv).

    sink: (H,), a logit that takes a share of each row and has no value. A row that the mask
    empties is zeros.
    """
    batch, heads, queries, keys = logits.shape
    bias = mask.logit_bias(queries, keys, dtype=logits.dtype, device=logits.device)
    if bias is not None:
        logits = logits + bias
    keep = mask.keep(queries, keys, batch, heads, logits.device)
    if keep is not None:
        logits = logits.masked_fill(~keep, -torch.inf)
    if sink is not None:
        last = sink.to(logits.dtype)[:, None, None].expand(batch, heads, queries, 1)
        logits = torch.cat([logits, last], dim=-1)
    weights = dropout(kit.masked_softmax(logits)[..., :keys], dropout_p)
    return by_group(weights, v.to(weights.dtype))


def by_group(x: Tensor, y: Tensor) -> Tensor:
    """x (B, H, L, N) times y (B, Hkv, N, M): (B, H, L, M). No head of y is repeated."""
    rows = x.reshape(x.shape[0], y.shape[1], -1, x.shape[3])
    return (rows @ y).reshape(*x.shape[:3], y.shape[3])
