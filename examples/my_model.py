"""A function for transformers, a module and a language model, as one might have them about."""

import torch
from torch import nn


def attention(module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs):
    """As transformers calls it: q (B, H, L, D) -> (output (B, L, H, D), weights)."""
    groups = module.num_key_value_groups
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    logits = query @ key.transpose(-2, -1) * scaling
    if attention_mask is not None:
        logits = logits + attention_mask
    weights = nn.functional.dropout(logits.softmax(-1), dropout, module.training)
    return (weights @ value).transpose(1, 2).contiguous(), weights


class SelfAttention(nn.Module):
    """x (B, S, 32) -> the same shape; causal."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(32, 96)
        self.out = nn.Linear(32, 32)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (4, 8)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        out = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(out.transpose(1, 2).flatten(2))


class Model(nn.Module):
    """ids (B, S) -> logits (B, S, 100)."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(100, 32)
        self.places = nn.Embedding(64, 32)
        self.attention = SelfAttention()
        self.head = nn.Linear(32, 100)

    def forward(self, ids):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        return self.head(x + self.attention(x))
