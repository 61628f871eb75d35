"""Masks and calls in the terms of ``torch.nn.functional.scaled_dot_product_attention``.

Letters: B batch, H heads, Hkv key heads, L queries, S keys, D head width, Dv value width.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from polyattn import Mask, kit

__all__ = ["lowered", "softmax_of_products"]


def softmax_of_products(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float, dropout_p: float
) -> Tensor:
    """softmax_j(scale * q_i . k_j + b_ij) v_j: q (B, H, L, D), k and v with Hkv heads."""
    attn_mask, is_causal = lowered(mask, q, k)
    grouped = q.shape[1] != k.shape[1]
    out = scaled_dot_product_attention(
        q, k, v, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=grouped
    )
    return out.to(q.dtype)  # Under autocast.


def lowered(mask: Mask, q: Tensor, k: Tensor) -> tuple[Tensor | None, bool]:
    """The mask as PyTorch's pair: a tensor (bool, or added to the logits), and its causal flag."""
    batch, heads, queries, _ = q.shape
    keys = k.shape[2]
    if mask.prefix == 0 and (queries == keys or queries == 1):
        # Its flag counts from the first key, and costs half of what a tensor does.
        rest = mask.without("causal")
        if rest.is_full:
            return None, True if queries > 1 else False  # noqa: SIM210
        if queries == 1:
            mask = rest
    keep = mask.keep(queries, keys, batch, heads, q.device)
    # The kernels add it to logits in float32; half types would round it first.
    exact = kit.accumulation_dtype(q.dtype)
    bias = mask.logit_bias(queries, keys, dtype=exact, device=q.device)
    if bias is None:
        return keep, False
    return (bias if keep is None else bias.masked_fill(~keep, -torch.inf)), False
