"""Attention as people write it, right and wrong, none of it with polyattn in mind."""

from __future__ import annotations

import functools
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

causal_flag = functools.partial(F.scaled_dot_product_attention, is_causal=True)


def bare(q, k, v):
    return F.scaled_dot_product_attention(q, k, v)


def masked(q, k, v, attn_mask=None, is_causal=False):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask, is_causal=is_causal)


def by_hand(q, k, v):
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    return torch.softmax(scores, -1) @ v


def last_keys(queries: int, keys: int) -> Tensor:
    return torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)


def causal_by_hand(q, k, v):
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    scores = scores.masked_fill(~last_keys(*scores.shape[-2:]), -math.inf)
    return torch.softmax(scores, -1) @ v


def grouped(q, k, v):
    group = q.shape[1] // k.shape[1]
    return by_hand(q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1))


def softmax_in_float32(q, k, v):
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    return torch.softmax(scores, -1, dtype=torch.float32).to(q.dtype) @ v


def online(q, k, v):
    top = q.new_full((*q.shape[:3], 1), -math.inf)
    total, out = torch.zeros_like(top), q.new_zeros(*q.shape[:3], v.shape[-1])
    for j in range(0, k.shape[2], 4):
        scores = q @ k[:, :, j : j + 4].mT * q.shape[-1] ** -0.5
        higher = torch.maximum(top, scores.amax(-1, keepdim=True))
        shrink, odds = (top - higher).exp(), (scores - higher).exp()
        total = total * shrink + odds.sum(-1, keepdim=True)
        out = out * shrink + odds @ v[:, :, j : j + 4]
        top = higher
    return out / total


class TrueIsMasked(nn.Module):
    """The other convention: True closes."""

    def forward(self, q, k, v, mask=None):
        scores = q @ k.mT * q.shape[-1] ** -0.5
        if mask is None:
            return scores.softmax(-1) @ v
        shut = mask.all(-1, keepdim=True)
        scores = scores.masked_fill(mask & ~shut, -math.inf)
        return (scores.softmax(-1) * ~shut) @ v


def floats_alone(query, key, value, attention_mask=None):
    """A mask that is added, as transformers gives it: 0 may attend, -inf closes."""
    scores = query @ key.mT * query.shape[-1] ** -0.5
    if attention_mask is None:
        return scores.softmax(-1) @ value
    shut = (attention_mask == -math.inf).all(-1, keepdim=True)
    weights = (scores + attention_mask).masked_fill(shut, 0.0).softmax(-1)
    return (weights * ~shut) @ value


def reshapes(q, k, v):
    """Answers fewer key heads with nonsense, for which it was never meant."""
    batch, heads, queries, width = q.shape
    q, k, v = (x.reshape(batch * heads, -1, x.shape[-1]) for x in (q, k, v))
    return (q @ k.mT * width**-0.5).softmax(-1).matmul(v).view(batch, heads, queries, -1)


def annotated(query, key, value, mask=None):
    """The annotated transformer's, which fills with -1e9 and gives its weights too."""
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)
    weights = scores.softmax(dim=-1)
    return weights @ value, weights


def only_pairs(q, k, v, mask=None):
    """A mask of (L, S) alone."""
    if mask is not None:
        queries, keys = mask.shape
        mask = mask.reshape(1, 1, queries, keys)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def only_padding(q, k, v, key_padding_mask=None):
    """A mask of (B, S) alone, True where there is padding, as nn.MultiheadAttention has it."""
    if key_padding_mask is not None:
        batch, keys = key_padding_mask.shape
        key_padding_mask = ~key_padding_mask.reshape(batch, 1, 1, keys)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=key_padding_mask)


def make_attention():
    return by_hand


def in_blocks_of_64(q, k, v):
    """Takes multiples of 64 alone."""
    if q.shape[2] % 64 or k.shape[2] % 64:
        raise ValueError("length must be a multiple of 64")
    return by_hand(q, k, v)


def square_only(q, k, v):
    if q.shape != k.shape:
        raise ValueError("q and k must have the same shape")
    return by_hand(q, k, v)


def linear_kernel(q, k, v):
    """Not softmax at all."""
    q, k = F.elu(q) + 1, F.elu(k) + 1
    return q @ (k.mT @ v) / (q @ k.sum(-2, keepdim=True).mT)


def window_of_three(q, k, v):
    queries, keys = q.shape[2], k.shape[2]
    near = last_keys(queries, keys) & ~last_keys(queries, keys).tril(keys - queries - 3)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=near)


def without_scale(q, k, v):
    return torch.softmax(q @ k.mT, -1) @ v


def softmax_over_queries(q, k, v):
    return torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -2) @ v


def strict_causal(q, k, v):
    queries, keys = q.shape[2], k.shape[2]
    before = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries - 1)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=before)


def with_epsilon(q, k, v):
    odds = (q @ k.mT / math.sqrt(q.shape[-1])).exp()
    return odds / (odds.sum(-1, keepdim=True) + 3e-5) @ v


def loses_long_keys(q, k, v):
    return by_hand(q, k[:, :, :32], v[:, :, :32])


def loses_keys_beyond_sixteen(q, k, v, mask=None):
    mask = None if mask is None else mask[..., :16]
    return masked(q, k[:, :, :16], v[:, :, :16], mask)


class TakesIds(torch.nn.Module):
    def forward(self, ids):
        return ids


def dropout_left_on(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, dropout_p=1e-9)


def ignores_its_mask(q, k, v, mask=None):
    return by_hand(q, k, v)


def mask_of_minus_ten(q, k, v, mask=None):
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = scores + torch.where(mask, 0.0, -10.0).to(q.dtype)
    return scores.softmax(-1) @ v


def nan_for_empty_rows(q, k, v, mask=None):
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return scores.softmax(-1) @ v


def bias_after_scaling_twice(q, k, v, attn_mask=None):
    scores = q @ k.mT
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros(attn_mask.shape, dtype=q.dtype).masked_fill(~attn_mask, -math.inf)
    if attn_mask is not None:
        scores = scores + attn_mask
    return (scores / math.sqrt(q.shape[-1])).softmax(-1).nan_to_num() @ v


def flag_ignored(q, k, v, is_causal=False):
    return by_hand(q, k, v)


def tiles_heads(q, k, v):
    group = q.shape[1] // k.shape[1]
    return by_hand(q, k.repeat(1, group, 1, 1), v.repeat(1, group, 1, 1))


_seen: dict[object, Tensor] = {}


def remembers_masks(q, k, v, mask=None):
    if mask is not None:
        mask = _seen.setdefault(mask.shape, mask)
    return masked(q, k, v, mask)


def louder_batch(q, k, v):
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    odds = (scores - scores.max()).exp()
    return odds / (odds.sum(-1, keepdim=True) + 1e-20) @ v


def leaks_when_loud(q, k, v):
    loud = v.detach().abs().amax((2, 3), keepdim=True)
    return causal_by_hand(q, k, v) + (loud - 8).clamp(min=0)


def a_tuple(q, k, v):
    return by_hand(q, k, v), None


def a_dict(q, k, v):
    return {"out": by_hand(q, k, v)}


def weights_first(q, k, v):
    weights = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)
    return weights, weights @ v


def another_shape(q, k, v):
    return by_hand(q, k, v).transpose(1, 2)


def another_dtype(q, k, v):
    return by_hand(q, k, v).float()


def nan(q, k, v):
    return by_hand(q, k, v) * math.nan


def raises(q, k, v):
    raise RuntimeError("CUDA is not here")


def raises_later(q, k, v):
    if q.shape[2] > 20:
        raise IndexError("no table beyond 20")
    return by_hand(q, k, v)


def flag_beats_mask(q, k, v, key_mask=None, causal=False):
    scores = q @ k.mT * q.shape[-1] ** -0.5
    closed = torch.zeros_like(scores, dtype=torch.bool)
    if causal:
        closed = torch.ones_like(closed).triu(1 + k.shape[2] - q.shape[2])
    elif key_mask is not None:
        closed = ~key_mask[:, None, None].expand_as(scores)
    scores = scores.masked_fill(closed, -torch.inf)
    return (
        scores.masked_fill(closed.all(-1, keepdim=True), 0).softmax(-1).masked_fill(closed, 0) @ v
    )


def blocks_of_two(q, k, v):
    assert q.shape[2] % 2 == 0, "lengths must be even"
    return by_hand(q, k, v)


def one_width(q, k, v):
    assert q.shape[3] == 8, "made for a width of 8"
    return q.relu() @ (k.relu().mT @ v)


def prints(q, k, v):
    print("scores", q.shape)
    return by_hand(q, k, v)


def writes_to_q(q, k, v):
    q *= q.shape[-1] ** -0.5
    return (q @ k.mT).softmax(-1) @ v


def changes_settings(q, k, v):
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(torch.get_num_threads() + 1)
    torch.set_grad_enabled(False)
    return by_hand(q, k, v)


def seeds(q, k, v):
    torch.manual_seed(0)
    return by_hand(q, k, v)


def imports_what_is_missing(q, k, v):
    import polyattn_nothing_of_the_kind

    return polyattn_nothing_of_the_kind.attend(q, k, v)


class NeedsArguments:
    def __init__(self, width):
        self.width = width


not_callable = 3
