"""How the kernels of `linear` walk along a sequence: in chunks, through a few reused buffers.

Buffers that are reused stay in the cache; whole feature tensors cost more in page faults than the
attention itself. Half types are summed in float32.

Letters: B batch, H query heads, K key heads, G = H / K, N = B K, L queries, S keys, D head width,
V value width, C chunk. State: s (B, K, D, V), z (B, K, 1, D). `keep` (B, S) is true for real keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat

import torch
from torch import Tensor

CHUNK = 64
"""Tokens per chunk. Work inside a chunk is quadratic, work per chunk is fixed; 64 was the best of
32, 64, 128 and 256 at head widths of 64, on a CPU."""


def cut(x: Tensor) -> tuple[Tensor, ...]:
    """(..., L, width) -> chunks (..., C, width), views."""
    return torch.split(x, CHUNK, -2)


class Chunks:
    """Reads chunks into buffers that the next chunk reuses, in the layout of the sums."""

    def __init__(self, s: Tensor, keep: Tensor | None = None) -> None:
        self.key_heads, self.dtype, self.device = s.shape[1], s.dtype, s.device
        self.weight = None if keep is None else keep.to(s.dtype)[:, None, :, None]
        self.held: dict[str, Tensor] = {}

    def room(self, name: str, *shape: int) -> Tensor:
        held = self.held.get(name)
        if held is None or held.shape != shape:
            held = self.held[name] = torch.empty(shape, dtype=self.dtype, device=self.device)
        return held

    def per_query(self, x: Tensor) -> tuple[Tensor, ...]:
        """(B, H, L, *) -> chunks (B, K, G, C, *), views."""
        return cut(x.unflatten(1, (self.key_heads, -1)))

    def weights(self) -> Iterator[Tensor | None]:
        """Chunks (B, 1, C, 1) of 1 for a real key and 0 for padding, or None throughout."""
        return repeat(None) if self.weight is None else iter(cut(self.weight))

    def plain(self, name: str, x: Tensor) -> Tensor:
        """Any chunk (B, K, ..., *) -> (N, rows, *), copied only where it must be."""
        if x.dtype != self.dtype:
            x = self.room(name, *x.shape).copy_(x)
        return x.reshape(x.shape[0] * x.shape[1], -1, x.shape[-1])

    def queries(self, x: Tensor) -> Tensor:
        """(B, K, G, C, D) -> c phi(x), (N, G C, D), with a factor c > 0 per row.

        Only ratios of the features of one query matter, so a row whose entries are all negative
        is moved up to a largest entry of 0: no query is too small for the sums.
        """
        return self._features("queries", x, shifted=True)

    def keys(self, x: Tensor, weight: Tensor | None) -> Tensor:
        """(B, K, C, D) -> phi(x), (N, C, D), zero for padding."""
        mapped = self._features("keys", x)
        if weight is not None:
            mapped.view(x.shape).mul_(weight)
        return mapped

    def _features(self, name: str, x: Tensor, *, shifted: bool = False) -> Tensor:
        out, spare = self.room(name, *x.shape), self.room("spare " + name, *x.shape)
        if x.dtype != self.dtype:
            x = spare.copy_(x)
        torch.clamp(x, max=0, out=out)
        if shifted:
            out.sub_(out.amax(-1, keepdim=True))
        out.exp_().add_(torch.clamp(x, min=0, out=spare))
        return out.view(x.shape[0] * x.shape[1], -1, x.shape[-1])

    def product(self, name: str, a: Tensor, b: Tensor) -> Tensor:
        return torch.bmm(a, b, out=self.room(name, a.shape[0], a.shape[1], b.shape[2]))

    def scores(self, name: str, a: Tensor, b: Tensor, added: Tensor | None = None) -> Tensor:
        """Products of rows a (N, G C, *) with rows b (N, C, *) not later: (N, G C, C)."""
        product = self.product(name, a, b.mT)
        if added is not None:
            product += added
        product.view(-1, b.shape[1], b.shape[1]).tril_()
        return product

    def divided(self, g: Tensor, out: Tensor, den: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of numerator (N, G C, V) and denominator (N, G C, 1) of out = num / den."""
        to_num = torch.div(g, den, out=self.room("to_num", *g.shape))
        to_den = torch.mul(to_num, out, out=self.room("to_den", *g.shape)).sum(-1).neg_()
        rows = g.shape[0] * g.shape[1]
        return to_num.view(rows, -1, g.shape[-1]), to_den.view(rows, -1, 1)


def sums(s: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """Fresh copies of a state, (N, D, V) and (N, 1, D)."""
    fresh = s.clone(memory_format=torch.contiguous_format).flatten(0, 1)
    return fresh, z.clone(memory_format=torch.contiguous_format).flatten(0, 1)


def divide(num: Tensor, den: Tensor, out: Tensor, dens: Tensor) -> None:
    """Write num / den and den; a row that saw no key, 0 / 0, is divided by one instead."""
    den.masked_fill_(den == 0, 1)
    dens.copy_(den.view(dens.shape))
    torch.div(num.view(out.shape), dens, out=out)


def like(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(x.new_empty(x.shape) for x in tensors)
