"""Attention functions in the style of transformers, right and wrong."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F


def repeated(x, groups):
    return x.repeat_interleave(groups, 1)


def weights_of(module, query, key, mask, scaling, dropout=0.0):
    logits = query @ repeated(key, module.num_key_value_groups).mT * scaling
    if mask is not None:
        logits = logits + mask[:, :, :, : key.shape[-2]]
    weights = logits.softmax(-1, dtype=torch.float32).to(query.dtype)
    return F.dropout(weights, dropout, module.training)


def eager(module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs):
    """As transformers' own: a float mask is added."""
    weights = weights_of(module, query, key, attention_mask, scaling, dropout)
    out = weights @ repeated(value, module.num_key_value_groups)
    return out.transpose(1, 2).contiguous(), weights


def fused(module, query, key, value, attention_mask, dropout=0.0, scaling=None, **kwargs):
    """As transformers' own: torch's kernel, by module.is_causal where there is no mask."""
    key, value = (repeated(x, module.num_key_value_groups) for x in (key, value))
    causal = query.shape[2] > 1 and attention_mask is None and module.is_causal
    out = F.scaled_dot_product_attention(
        query, key, value, attention_mask, dropout, is_causal=causal, scale=scaling
    )
    return out.transpose(1, 2).contiguous(), None


def windowed(
    module, query, key, value, attention_mask, dropout=0.0, scaling=None, sliding_window=None, **kw
):
    """Right: goes by sliding_window where there is no mask, as flash attention does."""
    if attention_mask is None and module.is_causal and sliding_window is not None:
        attention_mask = band(query.shape[2], key.shape[2], sliding_window)
    return fused(module, query, key, value, attention_mask, dropout, scaling)


def band(queries, keys, window):
    keep = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
    return (keep & ~keep.tril(keys - queries - window))[None, None]


def with_sinks(module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs):
    """As gpt-oss has it: one more logit of each head, which belongs to the layer."""
    logits = query @ repeated(key, module.num_key_value_groups).mT * scaling
    if attention_mask is not None:
        logits = logits + attention_mask[:, :, :, : key.shape[-2]]
    sinks = module.sinks.to(query.dtype).view(1, -1, 1, 1)
    sinks = sinks.expand(len(query), query.shape[1], query.shape[2], 1)
    weights = torch.cat([logits, sinks], -1).softmax(-1)[..., :-1]
    weights = F.dropout(weights, dropout, module.training)
    out = weights @ repeated(value, module.num_key_value_groups)
    return out.transpose(1, 2).contiguous(), weights


def sinks_bound(module, query, *args, **kwargs):
    """Right: such a function as the door says that it is to be handed over."""
    layer = copy.copy(module)
    layer.sinks = torch.full((query.shape[1],), -torch.inf)
    return with_sinks(layer, query, *args, **kwargs)


def of_the_config(module, query, key, value, attention_mask, **kwargs):
    kwargs["scaling"] = module.config.attention_multiplier
    return fused(module, query, key, value, attention_mask, **kwargs)


def capped(
    module, query, key, value, attention_mask, dropout=0.0, scaling=None, softcap=None, **kwargs
):
    """Right; its softcap is nothing that is tried."""
    return fused(module, query, key, value, attention_mask, dropout, scaling)


def not_transposed(module, query, key, value, attention_mask, **kwargs):
    out, weights = fused(module, query, key, value, attention_mask, **kwargs)
    return out.transpose(1, 2), weights


def output_alone(module, query, key, value, attention_mask, **kwargs):
    return fused(module, query, key, value, attention_mask, **kwargs)[0]


def takes_no_more(module, query, key, value, attention_mask, scaling, dropout=0.0):
    return fused(module, query, key, value, attention_mask, dropout, scaling)


def resets_the_flag(module, query, key, value, attention_mask, **kwargs):
    got = fused(module, query, key, value, attention_mask, **kwargs)
    module.is_causal = False
    return got


def keeps_its_weights(module, query, key, value, attention_mask, **kwargs):
    out, module.last = eager(module, query, key, value, attention_mask, **kwargs)
    return out, module.last


def own_scale(module, query, key, value, attention_mask, scaling=None, **kwargs):
    return fused(module, query, key, value, attention_mask, **kwargs)


def scales_twice(module, query, key, value, attention_mask, scaling=None, **kwargs):
    scaling = None if scaling is None else scaling * (scaling * query.shape[-1] ** 0.5)
    return fused(module, query, key, value, attention_mask, scaling=scaling, **kwargs)


def flag_of_one_query(module, query, key, value, attention_mask, scaling=None, **kwargs):
    """A decoding step that sees the first key alone."""
    key, value = (repeated(x, module.num_key_value_groups) for x in (key, value))
    causal = attention_mask is None and module.is_causal
    out = F.scaled_dot_product_attention(
        query, key, value, attention_mask, is_causal=causal, scale=scaling
    )
    return out.transpose(1, 2), None


def tril_of_one_query(module, query, key, value, attention_mask, scaling=None, **kwargs):
    if attention_mask is None and module.is_causal:
        attention_mask = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool).tril()
        attention_mask = attention_mask[None, None]
    return fused(module, query, key, value, attention_mask, scaling=scaling)


def window_too_wide(module, query, key, value, attention_mask, sliding_window=None, **kwargs):
    if attention_mask is None and module.is_causal and sliding_window is not None:
        attention_mask = band(query.shape[2], key.shape[2], sliding_window + 1)
    return fused(module, query, key, value, attention_mask, **kwargs)


def window_too_narrow(module, query, key, value, attention_mask, sliding_window=None, **kwargs):
    if sliding_window is not None:
        near = band(query.shape[2], key.shape[2], sliding_window - 1)
        attention_mask = near if attention_mask is None else attention_mask.masked_fill(~near, -1e9)
    return fused(module, query, key, value, attention_mask, **kwargs)


def gives_its_logits(module, query, key, value, attention_mask, **kwargs):
    out, _ = eager(module, query, key, value, attention_mask, **kwargs)
    return out, query @ repeated(key, module.num_key_value_groups).mT


def gives_unmasked_weights(module, query, key, value, attention_mask, scaling, **kwargs):
    out, _ = eager(module, query, key, value, attention_mask, scaling)
    return out, weights_of(module, query, key, None, scaling)


def never_drops(module, query, key, value, attention_mask, dropout=0.0, **kwargs):
    return eager(module, query, key, value, attention_mask, **kwargs)


def drops_unscaled(module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs):
    weights = weights_of(module, query, key, attention_mask, scaling, dropout) * (1 - dropout)
    out = weights @ repeated(value, module.num_key_value_groups)
    return out.transpose(1, 2), weights


def tiles_heads(module, query, key, value, attention_mask, **kwargs):
    key, value = (x.repeat(1, module.num_key_value_groups, 1, 1) for x in (key, value))
    module.num_key_value_groups = 1
    return fused(module, query, key, value, attention_mask, **kwargs)


def raises(module, query, key, value, attention_mask, **kwargs):
    raise RuntimeError("CUDA is not here")


def nothing(module, query, key, value, attention_mask, **kwargs):
    fused(module, query, key, value, attention_mask, **kwargs)


def hangs(module, query, key, value, attention_mask, **kwargs):
    while True:
        pass


GOOD = (eager, fused, windowed, sinks_bound, capped)


def deaf_to_its_mask(module, query, key, value, attention_mask, scaling=None, **kwargs):
    """It closes what comes later by itself, and never reads its mask; dropout neither."""
    groups = module.num_key_value_groups
    scores = query @ repeated(key, groups).transpose(2, 3) * scaling
    later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    weights = scores.masked_fill(later, -torch.inf).softmax(-1)
    return (weights @ repeated(value, groups)).transpose(1, 2).contiguous(), weights


RAISES = frozenset({takes_no_more})
"""Their fault is that they raise; of all others something wrong must be seen."""

CAUGHT = (
    (deaf_to_its_mask, "check_hf_dropout"),
    (not_transposed, "check_hf_output"),
    (output_alone, "check_hf_output"),
    (takes_no_more, "check_hf_output"),
    (resets_the_flag, "check_hf_module_untouched"),
    (keeps_its_weights, "check_hf_module_untouched"),
    (own_scale, "check_hf_scaling"),
    (scales_twice, "check_hf_scaling"),
    (flag_of_one_query, "check_hf_decoding_step"),
    (tril_of_one_query, "check_hf_decoding_step"),
    (window_too_wide, "check_hf_sliding_window"),
    (window_too_narrow, "check_hf_sliding_window"),
    (gives_its_logits, "check_hf_weights"),
    (gives_unmasked_weights, "check_hf_weights"),
    (never_drops, "check_hf_dropout"),
    (drops_unscaled, "check_hf_dropout"),
)
"""(function, name of the check that must catch it)."""
