"""Block-sparse softmax attention, forward and backward, each as one operator of torch.

An operator, because it loops over rows of blocks, whose number must not decide about the graph
that ``torch.compile`` makes. A row of blocks gathers the keys that its layout leaves open and is
answered in one go. The weights are computed again in the backward pass, so a call keeps q, k and v
and nothing else.

Letters: B batch, H heads, L queries, S keys, D head width, Dv value width, G heads of one layout,
M queries of a row of blocks, W keys that they see.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from polyattn.kit import accumulation_dtype, as_given, first_derivatives_only
from polyattn_plugins.sparse_layouts import rows_of

# Numbers of the keys gathered at a time: fused attention is fastest where they stay near the
# processor; written out, where its calls are few.
_FUSED, _WRITTEN_OUT = 1 << 16, 1 << 19


@torch.library.custom_op("polyattn_plugins::block_sparse_attention", mutates_args=())
def block_sparse_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: str,
    block: int,
    scale: float,
    first: Tensor,
    last: Tensor,
    real: Tensor | None = None,
    query_ids: Tensor | None = None,
    key_ids: Tensor | None = None,
    kept: Tensor | None = None,
    slopes: Tensor | None = None,
) -> Tensor:
    """Attention of q (B, H, L, D) over k (B, H, S, D), v (B, H, S, Dv) where a block is on.

    layout: a ``Layout`` as JSON. first, last: of the keys of each query, (L,), both within.
    real: bool (B, S), True = a real key. ids: (B, L) and (B, S), equal ids only, both or neither.
    kept: bool, 4-D, broadcasts to (B, H, L, S). slopes: (H,), adds -slope x distance.
    Returns: (B, H, L, Dv), stored as (B, L, H, Dv).
    """
    out = _like_layers(q, v.shape[3])
    opened = _Open(k.shape[2], first, last, real, query_ids, key_ids, kept, slopes)
    with as_given(q):
        for row in opened.rows(layout, block, k, _FUSED):
            out[:, row.heads, row.queries] = F.scaled_dot_product_attention(
                q[:, row.heads, row.queries],
                row.gathered(k),
                row.gathered(v),
                attn_mask=row.added,
                scale=scale,
            )
    return out


@torch.library.custom_op("polyattn_plugins::block_sparse_attention_backward", mutates_args=())
def block_sparse_attention_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: str,
    block: int,
    scale: float,
    first: Tensor,
    last: Tensor,
    real: Tensor | None,
    query_ids: Tensor | None,
    key_ids: Tensor | None,
    kept: Tensor | None,
    slopes: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of q, k, v and slopes, given that of the output, (B, H, L, Dv).

    Without slopes, the last is empty.
    """
    exact = accumulation_dtype(q.dtype)
    dq, dk, dv = (torch.zeros_like(x, dtype=exact) for x in (q, k, v))
    opened = _Open(k.shape[2], first, last, real, query_ids, key_ids, kept, slopes)
    d_slopes = dq.new_zeros(0 if slopes is None else len(slopes))
    with as_given(q):
        for row in opened.rows(layout, block, k, _WRITTEN_OUT):
            at = slice(None), row.heads, row.queries
            q_r, grad_r = scale * q[at].to(exact), grad[at].to(exact)
            k_r, v_r = row.gathered(k).to(exact), row.gathered(v).to(exact)
            # Keys by queries: so the long side comes first in every product, which is faster.
            weights = _softmax(k_r @ q_r.mT, None if row.added is None else row.added.mT)
            row.scatter(dv, weights @ grad_r)
            ds = v_r @ grad_r.mT
            torch.ops.aten._softmax_backward_data.out(ds, weights, -2, exact, grad_input=ds)
            dq[at] = scale * (ds.mT @ k_r)
            row.scatter(dk, ds @ q_r)
            if slopes is not None:
                d_slopes[row.heads] -= (ds * opened.distance(row).mT).sum((0, 2, 3))
    grads = (dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype))
    return *grads, d_slopes if slopes is None else d_slopes.to(slopes.dtype)


@dataclass(frozen=True)
class _Row:
    """Some heads of the queries of one row of blocks, and the keys that they see, (W,).

    added: to the logits, (B, G, M, W) with a B of 1; None where it would be zeros.
    """

    heads: slice
    queries: slice
    keys: Tensor
    added: Tensor | None

    def gathered(self, x: Tensor) -> Tensor:
        """(B, H, S, width) -> (B, G, W, width)."""
        return x[:, self.heads].index_select(2, self.keys)

    def scatter(self, x: Tensor, pieces: Tensor) -> None:
        """Add pieces (B, G, W, width) to x (B, H, S, width)."""
        x[:, self.heads].index_add_(2, self.keys, pieces)


@dataclass(frozen=True)
class _Open:
    """What the mask leaves open of what the layout leaves open."""

    keys: int
    first: Tensor
    last: Tensor
    real: Tensor | None
    query_ids: Tensor | None
    key_ids: Tensor | None
    kept: Tensor | None
    slopes: Tensor | None

    def rows(self, layout: str, block: int, k: Tensor, numbers: int) -> Iterator[_Row]:
        """The rows of blocks that see any key, with the blocks that causality and window allow."""
        offset = self.keys - len(self.first)
        start = offset // block
        by_head = rows_of(layout, start, -(-self.keys // block))
        alike = k.shape[1] // len(by_head)
        edges = [0, *range((start + 1) * block - offset, len(self.first), block), len(self.first)]
        within = torch.arange(block, device=k.device)
        for head, rows in enumerate(by_head):
            for (begin, end), columns in zip(pairwise(edges), rows, strict=True):
                low = int(self.first[begin:end].min()) // block
                high = int(self.last[begin:end].max()) // block
                seen = [column * block for column in columns if low <= column <= high]
                keys = (within.new_tensor(seen)[:, None] + within).flatten()
                keys = keys[keys < self.keys]
                if not seen:
                    continue
                added = self._added(slice(begin, end), keys, k, accumulation_dtype(k.dtype))
                together = max(numbers // (k.shape[0] * len(keys) * k.shape[3]), 1)
                for part in range(head * alike, (head + 1) * alike, together):
                    heads = slice(part, min(part + together, (head + 1) * alike))
                    some = None if added is None else added[:, heads]
                    yield _Row(heads, slice(begin, end), keys, some)

    def distance(self, row: _Row) -> Tensor:
        """Between the queries and the keys of a row: (M, W)."""
        return self._distance(row.queries, row.keys)

    def _added(self, queries: slice, keys: Tensor, k: Tensor, dtype: torch.dtype) -> Tensor | None:
        """What is added to the logits of all heads: (B, H, M, W) with sizes of 1."""
        first, last = self.first[queries, None], self.last[queries, None]
        parts = self.real, self.key_ids, self.kept, self.slopes
        if (
            all(part is None for part in parts)
            and first.max() <= keys[0]
            and keys[-1] <= last.min()
        ):
            return None
        keep = ((first <= keys) & (keys <= last))[None, None]
        if self.real is not None:
            keep = keep & self.real[:, None, None, keys]
        if self.query_ids is not None and self.key_ids is not None:
            ids = self.query_ids[:, None, queries, None], self.key_ids[:, None, None, keys]
            keep = keep & (ids[0] == ids[1])
        if self.kept is not None:
            sizes = (*self.kept.shape[:2], len(self.first), self.keys)
            keep = keep & self.kept.expand(sizes)[:, :, queries][..., keys]
        added = torch.zeros((), dtype=dtype, device=keys.device)
        if self.slopes is not None:
            wide = self.slopes.to(torch.promote_types(self.slopes.dtype, dtype))
            added = -(wide[:, None, None] * self._distance(queries, keys)).to(dtype)
        return torch.where(keep, added, -torch.inf).expand(-1, k.shape[1], -1, -1)

    def _distance(self, queries: slice, keys: Tensor) -> Tensor:
        position = torch.arange(self.keys - len(self.first), self.keys, device=keys.device)
        return (position[queries, None] - keys).abs()


def _softmax(logits: Tensor, added: Tensor | None) -> Tensor:
    """Weights in the place of logits, (B, G, W, M); a query without a key gives zeros."""
    if added is None:
        return torch.softmax(logits, -2, out=logits)
    empty = (added == -torch.inf).all(-2, keepdim=True)
    logits += added.masked_fill(empty, 0.0)
    return torch.softmax(logits, -2, out=logits).masked_fill_(empty, 0.0)


def _like_layers(x: Tensor, width: int) -> Tensor:
    """Zeros (B, H, N, width) stored as (B, N, H, width): its heads merge without a copy."""
    batch, heads, length, _ = x.shape
    return x.new_zeros(batch, length, heads, width).transpose(1, 2)


@block_sparse_attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *rest: object) -> Tensor:
    return _like_layers(q, v.shape[3])


@block_sparse_attention_backward.register_fake
def _(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    slopes = rest[-1]
    dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
    return dq, dk, dv, q.new_empty(0) if slopes is None else torch.empty_like(slopes)


def _keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    q, k, v, ctx.layout, ctx.block, ctx.scale, *masks = inputs
    ctx.save_for_backward(q, k, v, *masks)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    q, k, v, *masks = ctx.saved_tensors
    plan = ctx.layout, ctx.block, ctx.scale
    dq, dk, dv, d_slopes = block_sparse_attention_backward(grad, q, k, v, *plan, *masks)
    return dq, dk, dv, *(None,) * 9, None if masks[-1] is None else d_slopes


block_sparse_attention.register_autograd(_gradients, setup_context=_keep_for_backward)
block_sparse_attention_backward.register_autograd(first_derivatives_only("block-sparse attention"))
