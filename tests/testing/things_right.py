"""Right attention in the orders of dimensions and the styles in which it is met."""

from __future__ import annotations

import functools
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def length_second(q, k, v):
    """(B, L, H, D), by einsum."""
    scores = torch.einsum("blhd,bshd->bhls", q, k) / math.sqrt(q.shape[-1])
    return torch.einsum("bhls,bshd->blhd", scores.softmax(-1), v)


def length_second_causal(q, k, v):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


def length_second_masked(q, k, v, attn_mask=None, causal=False):
    """(B, L, H, D), with masks of (B, H, L, S) and a flag, and key heads repeated."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask, is_causal=causal)
    return out.transpose(1, 2)


def length_second_padded(q, k, v, key_padding_mask=None):
    """(B, L, H, D), True is padding, for (B, S); rows that see nothing give zeros."""
    scores = torch.einsum("blhd,bshd->bhls", q, k) / math.sqrt(q.shape[-1])
    if key_padding_mask is None:
        return torch.einsum("bhls,bshd->blhd", scores.softmax(-1), v)
    scores = scores.masked_fill(key_padding_mask[:, None, None, :], -math.inf)
    empty = key_padding_mask.all(-1)[:, None, None, None]
    weights = scores.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0)
    return torch.einsum("bhls,bshd->blhd", weights, v)


def length_first(q, k, v):
    """(L, B, H, D)."""
    scores = torch.einsum("lbhd,sbhd->bhls", q, k) * q.shape[-1] ** -0.5
    return torch.einsum("bhls,sbhd->lbhd", scores.softmax(-1), v)


def one_head(q, k, v):
    """(B, L, D)."""
    return torch.bmm(torch.softmax(torch.bmm(q, k.transpose(1, 2)) / q.shape[-1] ** 0.5, -1), v)


def one_head_masked(q, k, v, mask=None):
    """(B, L, D), with masks of (B, L, S), True may attend."""
    batch, length, width = q.shape
    scores = torch.baddbmm(q.new_zeros(batch, length, k.shape[1]), q, k.mT, alpha=width**-0.5)
    if mask is None:
        return torch.bmm(scores.softmax(-1), v)
    scores = scores.masked_fill(~mask, -math.inf)
    empty = ~mask.any(-1, keepdim=True)
    return torch.bmm(scores.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0), v)


def one_head_causal(q, k, v):
    length, keys = q.size(1), k.size(1)
    ahead = torch.ones(length, keys, dtype=torch.bool).triu(keys - length + 1)
    scores = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(q.size(2))
    return torch.bmm(scores.masked_fill(ahead, -math.inf).softmax(2), v)


def one_sequence(q, k, v):
    """(L, D)."""
    width = q.shape[1]
    return torch.mm(torch.softmax(torch.mm(q, k.t()) / width**0.5, dim=1), v)


def channels_second(q, k, v):
    """(B, H, D, L), as convolutions have it."""
    scores = torch.einsum("bhdl,bhds->bhls", q, k) / math.sqrt(q.shape[2])
    return torch.einsum("bhls,bhds->bhdl", scores.softmax(-1), v)


def by_einsum(q, k, v, *, mask=None):
    """A mask by keyword alone."""
    scores = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
        empty = ~mask.any(-1, keepdim=True)
        weights = scores.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0)
    else:
        weights = scores.softmax(-1)
    return torch.einsum("bhij,bhjd->bhid", weights, v)


def in_chunks(q, k, v):
    """Flash-style: both lengths in blocks, with a running maximum and sum."""
    outs = []
    for i in range(0, q.shape[2], 3):
        block = q[:, :, i : i + 3] * q.shape[-1] ** -0.5
        top = block.new_full((*block.shape[:3], 1), -math.inf)
        total, out = torch.zeros_like(top), block.new_zeros(*block.shape[:3], v.shape[-1])
        for j in range(0, k.shape[2], 4):
            scores = block @ k[:, :, j : j + 4].mT
            higher = torch.maximum(top, scores.amax(-1, keepdim=True))
            odds = (scores - higher).exp()
            total = total * (top - higher).exp() + odds.sum(-1, keepdim=True)
            out = out * (top - higher).exp() + odds @ v[:, :, j : j + 4]
            top = higher
        outs.append(out / total)
    return torch.cat(outs, 2)


def upcast(q, k, v):
    """Half types are computed in float32."""
    kind = q.dtype
    if kind in (torch.float16, torch.bfloat16):
        q, k, v = q.float(), k.float(), v.float()
    return F.scaled_dot_product_attention(q, k, v).to(kind)


class WithBuffer(nn.Module):
    """Causal, from a table that is made once."""

    def __init__(self, longest: int = 512) -> None:
        super().__init__()
        table = torch.ones(longest, longest, dtype=torch.bool).tril()
        self.register_buffer("table", table, persistent=False)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        length, keys = q.shape[2], k.shape[2]
        keep = self.table[keys - length : keys, :keys]
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        return scores.masked_fill(~keep, -math.inf).softmax(-1) @ v


class NeedsWidth(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = width**-0.5

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT * self.scale).softmax(-1) @ v


def make_eight() -> NeedsWidth:
    """A function without arguments gives the instance."""
    return NeedsWidth(8)


sixty_four_wide = NeedsWidth(64)


def over_eight(q, k, v):
    """Right for heads of width 64."""
    return (q @ k.mT / 8.0).softmax(-1) @ v


class OwnWidth(nn.Module):
    """It takes no other width than 16."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("ones", torch.ones(16))

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return ((q * self.ones) @ k.mT * 0.25).softmax(-1) @ v


@torch.jit.script
def scripted(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.matmul(q, k.transpose(-2, -1)) / (float(q.size(-1)) ** 0.5)
    return torch.matmul(torch.softmax(scores, -1), v)


def _scaled(q, k, v, factor, dropout):
    weights = F.dropout((q @ k.mT * factor / q.shape[-1] ** 0.5).softmax(-1), dropout)
    return weights @ v


partial = functools.partial(_scaled, factor=1.0, dropout=0.0)


def gives_weights(q, k, v, attn_mask=None):
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if attn_mask is None:
        weights = scores.softmax(-1)
    else:
        empty = ~attn_mask.any(-1, keepdim=True)
        scores = scores.masked_fill(~attn_mask, -math.inf).masked_fill(empty, 0.0)
        weights = scores.softmax(-1).masked_fill(empty, 0.0)
    return weights @ v, weights


def must_have_mask(q, k, v, mask):
    """A mask that has no default; None is one."""
    return gives_weights(q, k, v, mask)[0]


def must_have_tensor(q, k, v, mask):
    """A mask that has no default, and is no None."""
    assert mask.dtype == torch.bool
    return gives_weights(q, k, v, mask)[0]


def adds_floats(q, k, v, attn_bias=None):
    """A float mask that is added."""
    scores = q @ k.mT * q.shape[-1] ** -0.5
    if attn_bias is None:
        return scores.softmax(-1) @ v
    scores = scores + attn_bias
    empty = (scores == -math.inf).all(-1, keepdim=True)
    return scores.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0) @ v


def by_ones(q, k, v, attention_mask=None):
    """A float mask of (B, S), 1 for what is real, as tokenizers give it."""
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if attention_mask is None:
        return scores.softmax(-1) @ v
    assert attention_mask.dim() == 2
    keep = (attention_mask > 0.5)[:, None, None, :]
    empty = ~keep.any(-1, keepdim=True)
    scores = scores.masked_fill(~keep, -math.inf).masked_fill(empty, 0.0)
    return scores.softmax(-1).masked_fill(empty, 0.0) @ v


def with_causal_flag(q, k, v, causal=False):
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if causal:
        length, keys = scores.shape[-2:]
        ahead = torch.ones(length, keys, dtype=torch.bool).triu(keys - length + 1)
        scores = scores.masked_fill(ahead, -math.inf)
    return scores.softmax(-1) @ v


def scale_before(q, k, v):
    """A quarter root on each side."""
    root = q.shape[-1] ** -0.25
    return ((q * root) @ (k * root).mT).softmax(-1) @ v


def in_base_two(q, k, v):
    scores = q @ k.mT * (math.log2(math.e) / math.sqrt(q.shape[-1]))
    odds = torch.exp2(scores - scores.amax(-1, keepdim=True))
    return odds @ v / odds.sum(-1, keepdim=True)


def each_head_by_itself(q, k, v):
    outs = [
        torch.softmax(q[:, h] @ k[:, h].mT / q.shape[-1] ** 0.5, -1) @ v[:, h]
        for h in range(q.shape[1])
    ]
    return torch.stack(outs, 1)


RIGHT = (
    "length_second",
    "length_second_causal",
    "length_second_masked",
    "length_second_padded",
    "length_first",
    "one_head",
    "one_head_masked",
    "one_head_causal",
    "one_sequence",
    "channels_second",
    "by_einsum",
    "in_chunks",
    "upcast",
    "WithBuffer",
    "make_eight",
    "sixty_four_wide",
    "over_eight",
    "OwnWidth",
    "scripted",
    "partial",
    "gives_weights",
    "must_have_mask",
    "must_have_tensor",
    "adds_floats",
    "by_ones",
    "with_causal_flag",
    "scale_before",
    "in_base_two",
    "each_head_by_itself",
)
