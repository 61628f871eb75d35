"""Softmax attention within a window, forward and backward, each as one operator of torch.

An operator, because it loops over chunks, whose number must not decide about the graph that
``torch.compile`` makes. Forward: fused attention over many overlapping chunks at a time. Backward:
written out, one chunk of several heads at a time, so that the gradients of keys that chunks share
add up in place. The weights are computed again, so a call keeps q, k and v and nothing else.

Letters: B batch, H heads, L queries, S keys, D head width, Dv value width, C queries of a chunk,
W keys of a chunk, X chunks or samples taken together, G heads taken together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from polyattn.kit import accumulation_dtype, as_given, first_derivatives_only
from polyattn_plugins.window_chunks import Chunk, Closed, Layout, chunks_of

_FUSED_NUMBERS = 1 << 19  # output numbers of one fused call: 2 MB in float32, which stay in cache
_HEADS_TOGETHER = 8


@torch.library.custom_op("polyattn_plugins::window_attention", mutates_args=())
def window_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    left: int,
    right: int,
    scale: float,
    real: Tensor | None = None,
    query_ids: Tensor | None = None,
    key_ids: Tensor | None = None,
    slopes: Tensor | None = None,
) -> Tensor:
    """Attention of q (B, H, L, D) over the keys p - left .. p + right, p = i + S - L.

    k (B, H, S, D), v (B, H, S, Dv), L <= S, no size zero; left, right >= 0.
    real: bool (B, S), True = a real key. ids: (B, L) and (B, S), equal ids only, both or neither.
    slopes: (H,), adds -slope x distance. Returns: (B, H, L, Dv), stored as (B, L, H, Dv).
    """
    batch, queries = q.shape[0], q.shape[2]
    with as_given(q):
        q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
        out = _like_layers(q, v.shape[3])
        layout = Layout.of(queries, k.shape[2], left, right, step=32, parts=8)
        band = layout.band(slopes, accumulation_dtype(q.dtype), q.device)
        task = _Forward(layout, band, Closed(real, query_ids, key_ids), scale)
        # Samples of one chunk go together, or chunks of one sample, whichever are more.
        whole = layout.whole()
        whole = whole if len(whole) > batch else range(0)
        for start in layout.starts():
            if start not in whole:
                task.one_chunk(q, k, v, out, layout.chunk(start))
        for sample in range(batch if whole else 0):
            task.whole_chunks(q[sample], k[sample], v[sample], out[sample], sample, whole)
    return out


@torch.library.custom_op("polyattn_plugins::window_attention_backward", mutates_args=())
def window_attention_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    left: int,
    right: int,
    scale: float,
    real: Tensor | None,
    query_ids: Tensor | None,
    key_ids: Tensor | None,
    slopes: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of q, k, v and slopes, given that of the output, (B, H, L, Dv).

    Without slopes, the last is empty.
    """
    batch, heads, queries, _ = q.shape
    with as_given(q):
        dtype = accumulation_dtype(q.dtype)
        layout = Layout.of(queries, k.shape[2], left, right, step=64, parts=2)
        closed = Closed(real, query_ids, key_ids)
        band = layout.band(slopes, dtype, q.device)
        dq, dk, dv = (_like_layers(x, x.shape[3]) for x in (q, k, v))
        d_slopes = band.new_zeros(heads)
        together = max(_HEADS_TOGETHER // heads, 1), min(_HEADS_TOGETHER, heads)
        for sample in range(0, batch, together[0]):
            for head in range(0, heads, together[1]):
                some = slice(sample, sample + together[0]), slice(head, head + together[1])
                part = band if slopes is None else band[some[1]]
                task = _Backward(layout, part, closed, scale, some[0], slopes is not None)
                grads = task.run(*(x[some] for x in (grad, q, k, v)))
                for whole, piece in zip((dq, dk, dv), grads, strict=False):
                    whole[some] = piece.view(whole[some].shape)
                d_slopes[some[1]] += grads[3]
    return dq, dk, dv, band.new_empty(0) if slopes is None else d_slopes.to(slopes.dtype)


def _like_layers(x: Tensor, width: int) -> Tensor:
    """An empty (B, H, N, width) stored as (B, N, H, width): its heads merge without a copy."""
    batch, heads, length, _ = x.shape
    return x.new_empty(batch, length, heads, width).transpose(1, 2)


@dataclass(frozen=True)
class _Forward:
    layout: Layout
    band: Tensor
    closed: Closed
    scale: float

    def one_chunk(self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, chunk: Chunk) -> None:
        """One chunk of all samples: q (B, H, L, D) into out (B, H, L, Dv)."""
        mask = self.closed.added_to(self.band, slice(None), chunk)
        keys = k[:, :, chunk.keys], v[:, :, chunk.keys]
        out[:, :, chunk.rows] = self._fused(q[:, :, chunk.rows], *keys, mask)

    def whole_chunks(
        self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sample: int, whole: range
    ) -> None:
        """All whole chunks of one sample: q (H, L, D) into out (H, L, Dv)."""
        size, width = self.layout.size, self.layout.width
        together = max(1, _FUSED_NUMBERS // (size * out.shape[0] * out.shape[2]))
        for i in range(0, len(whole), together):
            some = whole[i : i + together]
            rows = slice(some[0], some[-1] + size)
            keys = slice(self.layout.chunk(some[0]).first, self.layout.chunk(some[-1]).last)
            mask = self.closed.added_to_many(self.band, sample, rows, keys, self.layout)
            block = self._fused(
                chunks_of(q[:, rows], size, size),
                chunks_of(k[:, keys], width, size),
                chunks_of(v[:, keys], width, size),
                mask,
            )
            chunks_of(out[:, rows], size, size).copy_(block)

    def _fused(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        shape = (*q.shape[:3], k.shape[2])
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask.expand(shape), scale=self.scale
        )


@dataclass(frozen=True)
class _Backward:
    """The gradients of some heads of some samples. Its memory is two blocks of logits."""

    layout: Layout
    band: Tensor
    closed: Closed
    scale: float
    samples: slice
    sloped: bool

    def run(
        self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Of q (X, H, L, D) and the others: dq, dk, dv as (X H, N, width), and (H,) for slopes."""
        groups = q.shape[:2]
        grad, q, k, v = (_stacked(x) for x in (grad, q, k, v))
        dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        d_slopes = q.new_zeros(groups[1])
        room = [q.new_empty(q.shape[0] * self.layout.size * self.layout.width) for _ in range(2)]
        for start in self.layout.starts():
            chunk = self.layout.chunk(start)
            shape = (q.shape[0], *chunk.shape)
            p, ds = (block[: shape[0] * shape[1] * shape[2]].view(shape) for block in room)
            q_c, grad_c, dq_c = q[:, chunk.rows], grad[:, chunk.rows], dq[:, chunk.rows]
            k_c, v_c = k[:, chunk.keys], v[:, chunk.keys]
            torch.baddbmm(p, q_c, k_c.mT, beta=0, alpha=self.scale, out=p)
            self._to_weights(p, groups, chunk)
            dv[:, chunk.keys].baddbmm_(p.mT, grad_c)
            torch.bmm(grad_c, v_c.mT, out=ds)
            torch.ops.aten._softmax_backward_data.out(ds, p, -1, p.dtype, grad_input=ds)
            torch.baddbmm(dq_c, ds, k_c, beta=0, alpha=self.scale, out=dq_c)
            dk[:, chunk.keys].baddbmm_(ds.mT, q_c, alpha=self.scale)
            if self.sloped:
                d_slopes -= self._along_distance(ds.view(*groups, *chunk.shape), chunk)
        return dq, dk, dv, d_slopes

    def _to_weights(self, logits: Tensor, groups: torch.Size, chunk: Chunk) -> None:
        """Turn logits (X H, C, W) into weights, in place; an emptied row into zeros."""
        mask = self.closed.added_to(self.band, self.samples, chunk)
        if not self.closed and not self.sloped:
            for columns in self.layout.triangles(chunk):
                logits[:, :, columns] += mask[0, :, :, columns]
            torch.softmax(logits, -1, out=logits)
            return
        empty = (mask == -torch.inf).all(-1, keepdim=True)
        by_head = logits.view(*groups, *chunk.shape)
        by_head += mask.masked_fill(empty, 0.0)
        torch.softmax(logits, -1, out=logits)
        by_head.masked_fill_(empty, 0.0)

    def _along_distance(self, d_logits: Tensor, chunk: Chunk) -> Tensor:
        """The sum of d_logits (X, H, C, W) x distance: (H,)."""
        rows, columns = chunk.shape
        distance = self.layout.distance(d_logits.device).abs().to(d_logits.dtype)
        return (d_logits * distance[:rows, chunk.cut : chunk.cut + columns]).sum((0, 2, 3))


def _stacked(x: Tensor) -> Tensor:
    """(X, H, N, D) -> (X H, N, D), contiguous, in the dtype in which sums are kept."""
    return x.to(accumulation_dtype(x.dtype)).reshape(-1, *x.shape[2:]).contiguous()


@window_attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *rest: object) -> Tensor:
    return _like_layers(q, v.shape[3])


@window_attention_backward.register_fake
def _(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dq, dk, dv = (_like_layers(x, x.shape[3]) for x in (q, k, v))
    slopes = rest[-1]
    return dq, dk, dv, q.new_empty(0) if slopes is None else torch.empty_like(slopes)


def _keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    q, k, v, ctx.left, ctx.right, ctx.scale, *masks = inputs
    ctx.save_for_backward(q, k, v, *masks)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    q, k, v, *masks = ctx.saved_tensors
    numbers = ctx.left, ctx.right, ctx.scale
    dq, dk, dv, d_slopes = window_attention_backward(grad, q, k, v, *numbers, *masks)
    return dq, dk, dv, None, None, None, None, None, None, None if masks[3] is None else d_slopes


window_attention.register_autograd(_gradients, setup_context=_keep_for_backward)
window_attention_backward.register_autograd(first_derivatives_only("window attention"))
