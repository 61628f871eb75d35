"""One fault each, as people make them, and the words with which it must be named."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def _scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])


def _ahead(queries: int, keys: int) -> Tensor:
    return torch.ones(queries, keys, dtype=torch.bool).triu(keys - queries + 1)


def no_scale(q, k, v):
    return (q @ k.mT).softmax(-1) @ v


def scaled_twice(q, k, v):
    q = q / math.sqrt(q.shape[-1])
    return _scores(q, k).softmax(-1) @ v


def scaled_by_width(q, k, v):
    return (q @ k.mT / q.shape[-1]).softmax(-1) @ v


def scaled_up(q, k, v):
    return (q @ k.mT * math.sqrt(q.shape[-1])).softmax(-1) @ v


def scaled_by_model(q, k, v):
    return (q @ k.mT / math.sqrt(q.shape[1] * q.shape[-1])).softmax(-1) @ v


def scaled_by_length(q, k, v):
    return (q @ k.mT / math.sqrt(q.shape[2])).softmax(-1) @ v


def scaled_by_keys(q, k, v):
    return (q @ k.mT / math.sqrt(k.shape[2])).softmax(-1) @ v


def scaled_by_half(q, k, v):
    return (q @ k.mT * 0.5).softmax(-1) @ v


def scaled_by_heads_causal(q, k, v):
    scores = q @ k.mT / math.sqrt(q.shape[1])
    return scores.masked_fill(_ahead(*scores.shape[-2:]), -math.inf).softmax(-1) @ v


def base_two(q, k, v):
    scores = _scores(q, k)
    odds = torch.exp2(scores - scores.amax(-1, keepdim=True))
    return odds / odds.sum(-1, keepdim=True) @ v


def over_queries(q, k, v):
    return _scores(q, k).softmax(-2) @ v


def over_heads(q, k, v):
    return F.softmax(_scores(q, k), dim=1) @ v


def of_magnitudes(q, k, v):
    return _scores(q, k).abs().softmax(-1) @ v


def of_logs(q, k, v):
    return _scores(q, k).log_softmax(-1) @ v


def softmax_twice(q, k, v):
    return _scores(q, k).softmax(-1).softmax(-1) @ v


def no_softmax(q, k, v):
    return _scores(q, k) @ v


def not_divided(q, k, v):
    return _scores(q, k).exp() @ v


def epsilon(q, k, v):
    scores = _scores(q, k)
    odds = (scores - scores.amax(-1, keepdim=True)).exp()
    return odds / (odds.sum(-1, keepdim=True) + 1e-3) @ v


def small_epsilon(q, k, v):
    scores = _scores(q, k)
    odds = (scores - scores.amax(-1, keepdim=True)).exp()
    return odds / (odds.sum(-1, keepdim=True) + 1e-6) @ v


def one_more(q, k, v):
    odds = _scores(q, k).exp()
    return odds / (1 + odds.sum(-1, keepdim=True)) @ v


def overflows(q, k, v):
    odds = _scores(q, k).exp()
    return odds / odds.sum(-1, keepdim=True) @ v


def one_maximum(q, k, v):
    scores = _scores(q, k)
    odds = (scores - scores.max()).exp()
    return odds / odds.sum(-1, keepdim=True) @ v


def exchanged(q, k, v):
    return _scores(q, v).softmax(-1) @ k


def queries_for_keys(q, k, v):
    return _scores(k, q).softmax(-1) @ v


def key_not_transposed(q, k, v):
    return (q @ k / math.sqrt(q.shape[-1])).softmax(-1) @ v


def between_channels(q, k, v):
    weights = (q.mT @ k / math.sqrt(q.shape[-1])).softmax(-1)
    return v @ weights


def reshaped_back(q, k, v):
    out = _scores(q, k).softmax(-1) @ v
    return out.transpose(1, 2).reshape(out.shape)


def viewed(q, k, v):
    """Given (B, L, H, D): a view where a transpose is needed."""
    batch, length, heads, width = q.shape
    q, k, v = (x.reshape(batch, heads, -1, width) for x in (q, k, v))
    return (_scores(q, k).softmax(-1) @ v).reshape(batch, length, heads, -1)


def merged(q, k, v):
    batch, _, length, _ = q.shape
    return (_scores(q, k).softmax(-1) @ v).transpose(1, 2).reshape(batch, length, -1)


def merged_wrongly(q, k, v):
    batch, _, length, _ = q.shape
    return (_scores(q, k).softmax(-1) @ v).reshape(batch, length, -1)


def values_scaled(q, k, v):
    return _scores(q, k).softmax(-1) @ (v / math.sqrt(v.shape[-1]))


def values_halved(q, k, v):
    return _scores(q, k).softmax(-1) @ v * 0.35


def residual(q, k, v):
    return q + _scores(q, k).softmax(-1) @ v


def normalised(q, k, v):
    out = _scores(q, k).softmax(-1) @ v
    return F.layer_norm(out, out.shape[-1:])


def strict(q, k, v):
    scores = _scores(q, k)
    queries, keys = scores.shape[-2:]
    before = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries - 1)
    return scores.masked_fill(~before, -1e9).softmax(-1) @ v


def one_too_many(q, k, v):
    scores = _scores(q, k)
    queries, keys = scores.shape[-2:]
    ahead = torch.ones(queries, keys, dtype=torch.bool).triu(keys - queries + 2)
    return scores.masked_fill(ahead, -math.inf).softmax(-1) @ v


def causal_turned(q, k, v):
    scores = _scores(q, k)
    behind = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(-1)
    return scores.masked_fill(behind, -math.inf).softmax(-1) @ v


def causal_inverted(q, k, v):
    scores = _scores(q, k)
    keep = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    return scores.masked_fill(keep, -1e9).softmax(-1) @ v


def masked_after(q, k, v):
    weights = _scores(q, k).softmax(-1)
    return weights.tril() @ v


def closed_to_zero(q, k, v):
    return _scores(q, k).tril().softmax(-1) @ v


def causal_by_ten_thousand(q, k, v):
    scores = _scores(q, k)
    return scores.masked_fill(_ahead(*scores.shape[-2:]), -1e4).softmax(-1) @ v


def window_off_by_one(q, k, v, window_size=3):
    scores = _scores(q, k)
    queries, keys = scores.shape[-2:]
    apart = torch.arange(keys - queries, keys)[:, None] - torch.arange(keys)
    near = (apart >= 0) & (apart <= window_size)
    return scores.masked_fill(~near, -math.inf).softmax(-1) @ v


def length_second_no_scale(q, k, v):
    """(B, L, H, D), and a fault as well."""
    weights = torch.einsum("blhd,bshd->bhls", q, k).softmax(-1)
    return torch.einsum("bhls,bshd->blhd", weights, v)


def one_head_no_scale(q, k, v):
    return torch.bmm(torch.bmm(q, k.transpose(1, 2)).softmax(-1), v)


def mask_unused(q, k, v, attn_mask=None):
    return _scores(q, k).softmax(-1) @ v


def mask_after_softmax(q, k, v, mask=None):
    weights = _scores(q, k).softmax(-1)
    return (weights if mask is None else weights * mask) @ v


def mask_as_number(q, k, v, attn_mask=None):
    scores = _scores(q, k)
    return (scores if attn_mask is None else scores - (~attn_mask).float()).softmax(-1) @ v


def mask_to_zero(q, k, v, mask=None):
    scores = _scores(q, k)
    return (scores if mask is None else scores.masked_fill(mask == 0, 1e-9)).softmax(-1) @ v


def mask_turned(q, k, v, mask=None):
    scores = _scores(q, k)
    if mask is None:
        return scores.softmax(-1) @ v
    keep = mask.mT if mask.shape[-1] == mask.shape[-2] else mask
    return scores.masked_fill(~keep, -1e9).softmax(-1) @ v


def mask_by_ten_thousand(q, k, v, mask=None):
    scores = _scores(q, k)
    return (scores if mask is None else scores.masked_fill(~mask, -1e4)).softmax(-1) @ v


def bert(q, k, v, attention_mask=None):
    """1.0 for what is real, -10000 added to the rest."""
    scores = _scores(q, k)
    if attention_mask is not None:
        scores = scores + (1.0 - attention_mask) * -10000.0
    return scores.softmax(-1) @ v


def mask_first_sample(q, k, v, mask=None):
    scores = _scores(q, k)
    return (scores if mask is None else scores.masked_fill(~mask[:1], -1e9)).softmax(-1) @ v


def rows_of_nan(q, k, v, mask=None):
    scores = _scores(q, k)
    return (scores if mask is None else scores.masked_fill(~mask, -math.inf)).softmax(-1) @ v


def rows_of_means(q, k, v, mask=None):
    scores = _scores(q, k)
    return (scores if mask is None else scores.masked_fill(~mask, -1e9)).softmax(-1) @ v


def bias_before_scale(q, k, v, attn_bias=None):
    scores = q @ k.mT
    if attn_bias is not None:
        scores = scores + attn_bias
    scores = scores / math.sqrt(q.shape[-1])
    empty = (scores == -math.inf).all(-1, keepdim=True)
    return scores.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0) @ v


def flag_unused(q, k, v, is_causal=False):
    return _scores(q, k).softmax(-1) @ v


def flag_strict(q, k, v, causal=False):
    scores = _scores(q, k)
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu() == 1, -1e9)
    return scores.softmax(-1) @ v


def tiled(q, k, v):
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat(1, group, 1, 1), v.repeat(1, group, 1, 1)
    return _scores(q, k).softmax(-1) @ v


def dropout_on(q, k, v):
    return F.dropout(_scores(q, k).softmax(-1), 0.1) @ v


def epsilon_causal(q, k, v):
    scores = _scores(q, k)
    odds = (scores - scores.amax(-1, keepdim=True)).exp().tril()
    return odds / (odds.sum(-1, keepdim=True) + 1e-4) @ v


def weights_turned(q, k, v):
    return _scores(q, k).softmax(-1).mT @ v


def in_half(q, k, v):
    return (_scores(q.half(), k.half()).softmax(-1) @ v.half()).to(q.dtype)


def _by_blocks(q, k, v, block, *, causal=False, sums=True, outs=True):
    """With a running maximum; ``sums``, ``outs``: whether what was summed so far is rescaled."""
    top = q.new_full((*q.shape[:3], 1), -math.inf)
    total, out = torch.zeros_like(top), q.new_zeros(*q.shape[:3], v.shape[-1])
    scores = _scores(q, k)
    if causal:
        scores = scores.masked_fill(_ahead(*scores.shape[2:]), -math.inf)
    for j in range(0, k.shape[2], block):
        here = scores[..., j : j + block]
        higher = torch.maximum(top, here.amax(-1, keepdim=True))
        shrink, odds = (top - higher).exp(), (here - higher).exp()
        total = total * (shrink if sums else 1.0) + odds.sum(-1, keepdim=True)
        out = out * (shrink if outs else 1.0) + odds @ v[:, :, j : j + block]
        top = higher
    return out / total


def nothing_rescaled(q, k, v):
    return _by_blocks(q, k, v, 4, sums=False, outs=False)


def outputs_not_rescaled(q, k, v):
    """Right as long as there is one block."""
    return _by_blocks(q, k, v, 64, outs=False)


def nothing_rescaled_at_length(q, k, v):
    return _by_blocks(q, k, v, 32, sums=False, outs=False)


def sums_not_rescaled(q, k, v):
    return _by_blocks(q, k, v, 2, causal=True, sums=False)


class NoScaleModule(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT).softmax(-1) @ v


FAULTS: tuple[tuple[str, str], ...] = (
    ("no_scale", "the logits are not scaled"),
    ("scaled_twice", "scaled by 1/D"),
    ("scaled_by_width", "scaled by 1/D"),
    ("scaled_up", "multiplied by sqrt(D)"),
    ("scaled_by_model", "1/sqrt(H D)"),
    ("scaled_by_length", "1/sqrt(L)"),
    ("scaled_by_keys", "1/sqrt(S)"),
    ("scaled_by_half", "scaled by 0.5"),
    ("scaled_by_heads_causal", "1/sqrt(H)"),
    ("base_two", "base 2"),
    ("over_queries", "over the queries"),
    ("over_heads", "over the heads"),
    ("of_magnitudes", "magnitudes of the logits"),
    ("of_logs", "log_softmax"),
    ("softmax_twice", "applied twice"),
    ("no_softmax", "there is no softmax"),
    ("not_divided", "not divided by their sum"),
    ("epsilon", "0.001 is added to the denominator"),
    ("small_epsilon", "1e-06 is added to the denominator"),
    ("epsilon_causal", "0.0001 is added to the denominator"),
    ("weights_turned", "the weights are transposed"),
    ("in_half", "it computes in float16"),
    ("one_more", "1 is added to the denominator"),
    ("overflows", "the exponentials overflow"),
    ("one_maximum", "not the row's own"),
    ("exchanged", "keys and values are exchanged"),
    ("queries_for_keys", "queries and keys are exchanged"),
    ("key_not_transposed", "keys are not transposed"),
    ("between_channels", "between channels"),
    ("reshaped_back", "transposed and reshaped back"),
    ("viewed", "viewed as (B, H, L, D)"),
    ("merged", "the heads are merged, (B, L, H D)"),
    ("merged_wrongly", "merged by a reshape without a transpose"),
    ("values_scaled", "multiplied by 1/sqrt(D)"),
    ("values_halved", "multiplied by 0.35"),
    ("residual", "a residual is added: the output holds q"),
    ("normalised", "layer-normalised"),
    ("strict", "the causal mask is strict"),
    ("one_too_many", "one key too many"),
    ("causal_turned", "the causal mask is transposed"),
    ("causal_inverted", "the causal mask is inverted"),
    ("masked_after", "the mask comes after the softmax"),
    ("closed_to_zero", "closed logits are set to 0"),
    ("causal_by_ten_thousand", "closed logits get -10000"),
    ("window_off_by_one", "window_size = 3: off by 1"),
    ("length_second_no_scale", "the logits are not scaled"),
    ("one_head_no_scale", "the logits are not scaled"),
    ("NoScaleModule", "the logits are not scaled"),
    ("nothing_rescaled", "neither the sum nor the output so far is rescaled"),
    ("nothing_rescaled_at_length", "neither the sum nor the output so far is rescaled"),
    ("outputs_not_rescaled", "the output so far is not rescaled"),
    ("sums_not_rescaled", "the sum so far is not rescaled"),
    ("mask_unused", "the mask is never used"),
    ("mask_after_softmax", "the mask comes after the softmax"),
    ("mask_as_number", "the mask is added as a number"),
    ("mask_to_zero", "set to 0, which is no -inf"),
    ("mask_turned", "the mask is transposed"),
    ("mask_by_ten_thousand", "closed logits get -10000"),
    ("bert", "closed logits get -10000"),
    ("mask_first_sample", "of the first sample"),
    ("rows_of_nan", "a row without a key is NaN"),
    ("rows_of_means", "the mean of all values"),
    ("bias_before_scale", "added before the scale"),
    ("flag_unused", "is_causal=True changes nothing"),
    ("flag_strict", "the causal mask is strict"),
    ("tiled", "key heads are tiled"),
    ("dropout_on", "something else at each call"),
)
