"""Kernel of `gated_linear`: one operator with its own backward, in chunks.

    S_t = diag(exp g_t) S_{t-1} + k_t v_t^T         out_t = scale q_t S_t         g <= 0

Inside a chunk the weight of key s for query t is sum_d q_td k_sd exp(g_{s+1} + ... + g_t)_d. To
split the exponent into a factor for t and one for s needs a point between them: the chunk is
halved again and again, and the keys of each first half reach the queries of the second through the
point where they meet. Both factors are exponentials of sums of non-positive numbers, built from
the bottom up without a difference: nothing overflows and nothing cancels, however strong a decay.

Letters: B batch, H query heads, K key heads, G = H / K, N = B K, L length, D head width, V value
width, C chunk, R chunks that go together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from polyattn.kit import as_given, first_derivatives_only

CHUNK = 64
"""The longest chunk, a power of two."""

ROWS = 2048
"""Tokens times key heads that go together, where they are few: for less, calls cost the most."""


@dataclass
class _Decay:
    """Decays of one chunk: exp of sums of g (N, C, D).

    past: from the start of the chunk to t, t included. rest: after s, to the end of the chunk.
    levels: by halves (N, n, h, D): from each key of a first half to its end, and from there to
    each query of the second.
    """

    past: Tensor
    rest: Tensor
    levels: list[tuple[int, Tensor, Tensor]]

    @classmethod
    def of(cls, g: Tensor) -> _Decay:
        past, rest, levels, half = g.clone(), torch.zeros_like(g), [], 1
        while half < g.shape[1]:
            p, r = _pairs(past, half), _pairs(rest, half)
            levels.append((half, r[:, :, 0].exp(), p[:, :, 1].exp()))
            r[:, :, 0] += p[:, :, 1, -1:]
            p[:, :, 1] += p[:, :, 0, -1:]
            half *= 2
        return cls(past.exp_(), rest.exp_(), levels)


def _pairs(x: Tensor, half: int) -> Tensor:
    """(..., C, D) -> (..., n, 2, h, D): neighbouring blocks of h tokens."""
    return torch.unflatten(x, -2, (-1, 2, half))


def _below(a: Tensor, half: int) -> Tensor:
    """(N, G, C, C) -> (N, G, n, h, h), a view: rows of each second half, columns of its first."""
    blocks = torch.unflatten(torch.unflatten(a, -1, (-1, 2 * half)), -3, (-1, 2 * half))
    return blocks.diagonal(dim1=-4, dim2=-2).movedim(-1, -3)[..., half:, :half]


def _scores(q: Tensor, k: Tensor, decay: _Decay) -> Tensor:
    """Weights (N, G, C, C) of keys k (N, C, D) for queries q (N, G, C, D), causal."""
    out = q.new_zeros(*q.shape[:3], q.shape[2])
    out.diagonal(dim1=-2, dim2=-1).copy_((q * k[:, None]).sum(-1))
    for half, to_end, from_end in decay.levels:
        first = _pairs(k, half)[:, :, 0] * to_end
        second = _pairs(q, half)[:, :, :, 1] * from_end[:, None]
        _below(out, half).copy_(second @ first.mT[:, None])
    return out


def _to_factors(q: Tensor, k: Tensor, decay: _Decay, to: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of q and k, given that `to` (N, G, C, C) of their scores."""
    own = to.diagonal(dim1=-2, dim2=-1).unsqueeze(-1)
    gq, gk = own * k[:, None], (own * q).sum(1)
    for half, to_end, from_end in decay.levels:
        first = _pairs(k, half)[:, :, 0] * to_end
        second = _pairs(q, half)[:, :, :, 1] * from_end[:, None]
        block = _below(to, half)
        _pairs(gq, half)[:, :, :, 1] += (block @ first[:, None]) * from_end[:, None]
        _pairs(gk, half)[:, :, 0] += (block.mT @ second).sum(1) * to_end
    return gq, gk


@dataclass
class _Part:
    """Some chunks in the type of the sums, P = N R of them, filled up with zeros.

    Zeros change nothing: a token without key, value and decay leaves the state as it is. What
    happens inside chunks is done for all R at once; what goes from chunk to chunk, one by one.
    q: (P, G, C, D). k: (P, C, D). v: (P, C, V).
    """

    q: Tensor
    k: Tensor
    v: Tensor
    decay: _Decay
    chunks: int

    def entering(self) -> Tensor:
        """What each chunk adds to the state, (P, D, V)."""
        return (self.k * self.decay.rest).mT @ self.v

    def through(
        self, s: Tensor, added: Tensor, *, backwards: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Take s (N, D, V) from chunk to chunk: decay, then add. Before each (P, D, V); at last."""
        kept = torch.unflatten(self.decay.past[:, -1, :, None], 0, (-1, self.chunks)).unbind(1)
        gained = torch.unflatten(added, 0, (-1, self.chunks)).unbind(1)
        met = []
        order = range(self.chunks)
        for r in reversed(order) if backwards else order:
            met.append(s)
            s = torch.addcmul(gained[r], s, kept[r])
        return torch.stack(met[::-1] if backwards else met, 1).flatten(0, 1), s

    def put(self, into: Tensor, rows: slice, value: Tensor) -> None:
        """Write (P, [G,] C, *) to rows of (B, H, L, *), without what was filled up."""
        part = into[:, :, rows]
        shape = (self.k.shape[0] // self.chunks, self.chunks, -1, self.k.shape[1], part.shape[3])
        value = value.reshape(shape).transpose(1, 2)
        value = value.reshape(part.shape[0], part.shape[1], -1, part.shape[3])
        part.copy_(value[:, :, : part.shape[2]])


def _parts(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, dtype: torch.dtype, *, backwards: bool = False
) -> Iterator[tuple[slice, _Part]]:
    length = k.shape[2]
    size = min(CHUNK, 1 << (length - 1).bit_length())
    together = size * max(1, ROWS // (size * k.shape[0] * k.shape[1]))
    starts = range(0, length, together)
    for start in reversed(starts) if backwards else starts:
        rows = slice(start, min(start + together, length))
        chunks = -(-(rows.stop - start) // size)
        keys, values, decays = (
            _filled(x, rows, size * chunks, dtype).view(-1, size, x.shape[3]) for x in (k, v, g)
        )
        queries = _per_query(q, rows, keys, chunks)
        yield rows, _Part(queries, keys, values, _Decay.of(decays), chunks)


def _per_query(x: Tensor, rows: slice, k: Tensor, chunks: int) -> Tensor:
    """Rows of (B, H, L, *) as (P, G, C, *), beside keys k (P, C, D)."""
    filled = _filled(x, rows, k.shape[1] * chunks, k.dtype)
    grouped = filled.view(k.shape[0] // chunks, -1, chunks, k.shape[1], x.shape[3])
    return grouped.transpose(1, 2).flatten(0, 1)


def _filled(x: Tensor, rows: slice, size: int, dtype: torch.dtype) -> Tensor:
    """Rows of (B, H, L, *) as (B H, size, *), contiguous."""
    part = x[:, :, rows].to(dtype).flatten(0, 1).contiguous()
    return part if part.shape[1] == size else pad(part, (0, 0, 0, size - part.shape[1]))


@torch.library.custom_op("polyattn::gated_scan", mutates_args=())
def scan(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, s: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """The output (B, H, L, V) and the state (B, K, D, V) afterwards.

    q: (B, H, L, D). k: (B, K, L, D). v: (B, K, L, V). g: (B, K, L, D), at most 0. s: the state
    before, (B, K, D, V), in the type that sums are kept in.
    """
    out, state = q.new_empty(*q.shape[:3], v.shape[3]), s.flatten(0, 1)
    with as_given(q):
        for rows, part in _parts(q, k, v, g, s.dtype):
            before, state = part.through(state, part.entering())
            read = (part.q * part.decay.past[:, None]).flatten(1, 2) @ before
            read.baddbmm_(_scores(part.q, part.k, part.decay).flatten(1, 2), part.v)
            part.put(out, rows, read.mul_(scale))
    return out, state.reshape(s.shape).clone()


@torch.library.custom_op("polyattn::gated_scan_backward", mutates_args=())
def scan_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    s: Tensor,
    scale: float,
    to_out: Tensor,
    to_s: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, g and the first state: back through time from the last chunk."""
    states = [s.flatten(0, 1)]
    grads = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v, g)]
    later = to_s.flatten(0, 1)
    with as_given(q):
        for _, part in _parts(q, k, v, g, s.dtype):
            states.append(part.through(states[-1], part.entering())[1])
        for rows, part in _parts(q, k, v, g, s.dtype, backwards=True):
            states.pop()
            to = _per_query(to_out, rows, part.k, part.chunks).mul(scale)
            found, later = _part_backward(part, states[-1], later, to)
            for into, value in zip(grads, found, strict=True):
                part.put(into, rows, value)
    gq, gk, gv, gg = grads
    return gq, gk, gv, gg, later.reshape(s.shape).clone()


def _part_backward(
    part: _Part, state: Tensor, later: Tensor, to: Tensor
) -> tuple[tuple[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """Gradients of q, k, v, g of a part, and of the state before it.

    state: before the part. later: the gradient of that behind it. to: of its output (P, G, C, V).
    That of g needs no product of its own: q . dq - k . dk of a token is what its place in the sum
    of decays receives, and g enters every such sum from its token on.
    """
    q, k, v, past, rest = part.q, part.k, part.v, part.decay.past, part.decay.rest
    flat, entering = to.flatten(1, 2), part.entering()
    before, _ = part.through(state, entering)
    asked = (q * past[:, None]).flatten(1, 2).mT @ flat
    behind, first = part.through(later, asked, backwards=True)
    to_scores = (flat @ v.mT).view(*q.shape[:3], -1).tril()
    gq, gk = _to_factors(q, k, part.decay, to_scores)
    gq += (flat @ before.mT).view(q.shape) * past[:, None]
    gk += (v @ behind.mT) * rest
    gv = torch.baddbmm((k * rest) @ behind, _scores(q, k, part.decay).flatten(1, 2).mT, flat)
    places = (q * gq).sum(1) - k * gk
    places[:, -1] += (behind * torch.addcmul(entering, before, past[:, -1, :, None])).sum(-1)
    return (gq, gk, gv, places.flip(1).cumsum(1).flip(1)), first


@scan.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, g: Tensor, s: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    return q.new_empty(*q.shape[:3], v.shape[3]), s.new_empty(s.shape)


@scan_backward.register_fake
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    s: Tensor,
    scale: float,
    to_out: Tensor,
    to_s: Tensor,
) -> tuple[Tensor, ...]:
    return tuple(x.new_empty(x.shape) for x in (q, k, v, g, s))


# torch types the context of autograd as Any.
def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *tensors, ctx.scale = inputs
    ctx.save_for_backward(*tensors)


def _gradients(ctx: Any, to_out: Tensor, to_s: Tensor) -> tuple[Tensor | None, ...]:
    return *scan_backward(*ctx.saved_tensors, ctx.scale, to_out, to_s), None


scan.register_autograd(_gradients, setup_context=_keep)
scan_backward.register_autograd(first_derivatives_only("gated_linear"))
