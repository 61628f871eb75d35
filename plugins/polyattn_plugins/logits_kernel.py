"""What is done with logits that are written out: mask, softmax, values.

Letters: B batch, H heads, Hkv key heads, L queries, S keys, Dv value width.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import dropout

from polyattn import Mask, kit

__all__ = ["by_group", "weighted"]


def weighted(logits: Tensor, v: Tensor, mask: Mask, dropout_p: float) -> Tensor:
    """softmax_j(logits_ij + b_ij) v_j: (B, H, L, Dv), of logits (B, H, L, S) and v (B, Hkv, S, Dv).

    A row that the mask empties is zeros.
    """
    batch, heads, queries, keys = logits.shape
    bias = mask.logit_bias(queries, keys, dtype=logits.dtype, device=logits.device)
    if bias is not None:
        logits = logits + bias
    keep = mask.keep(queries, keys, batch, heads, logits.device)
    weights = dropout(kit.masked_softmax(logits, keep), dropout_p)
    return by_group(weights, v.to(weights.dtype))


def by_group(x: Tensor, y: Tensor) -> Tensor:
    """x (B, H, L, N) times y (B, Hkv, N, M): (B, H, L, M). No head of y is repeated."""
    rows = x.reshape(x.shape[0], y.shape[1], -1, x.shape[3])
    return (rows @ y).reshape(*x.shape[:3], y.shape[3])
