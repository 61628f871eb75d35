"""How a window over a sequence is cut into chunks, and what is closed within one.

Query i sits at position p = i + S - L and sees the keys p - left .. p + right. C neighbouring
queries read the left + right + C keys that any of them sees; the two triangles at the ends of that
range are closed by an additive band, which is the same for every chunk.

Letters: B batch, H heads, L queries, S keys, C queries of a chunk, W keys of a chunk, X chunks or
samples taken together.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_ALIGNED = 16  # a product over 319 keys takes a tenth longer than one over 320


@dataclass(frozen=True)
class Chunk:
    """Queries start..stop and the keys first..last that they read; ``cut`` columns of the band
    lie before the first key of the sequence."""

    start: int
    stop: int
    first: int
    last: int
    cut: int

    @property
    def rows(self) -> slice:
        return slice(self.start, self.stop)

    @property
    def keys(self) -> slice:
        return slice(self.first, self.last)

    @property
    def shape(self) -> tuple[int, int]:
        return self.stop - self.start, self.last - self.first


@dataclass(frozen=True)
class Layout:
    """Where the chunks of one call lie: ``size`` C and ``width`` W, with the window clamped."""

    queries: int
    keys: int
    left: int
    right: int
    size: int
    width: int

    @classmethod
    def of(cls, queries: int, keys: int, left: int, right: int, *, step: int, parts: int) -> Layout:
        """Chunks of about a ``parts``-th of the window, in multiples of ``step``, 256 at most.

        C of every C + W products are wasted on the triangles, and small products are slow.
        """
        left, right = min(left, keys - 1), min(right, keys - 1)
        size = min(_up((left + right + 1) // parts, step), 256, queries)
        return cls(queries, keys, left, right, size, _up(left + right + size, _ALIGNED))

    @property
    def _lead(self) -> int:
        """Keys that a chunk reads before the position of its first query."""
        return self.width - self.size - self.right

    def chunk(self, start: int) -> Chunk:
        """The chunk that begins with query ``start``, clamped to the sequence."""
        position = start + self.keys - self.queries
        stop = min(start + self.size, self.queries)
        origin = position - self._lead
        last = min(position + stop - start + self.right, self.keys)
        return Chunk(start, stop, max(origin, 0), last, max(-origin, 0))

    def starts(self) -> range:
        """The first query of every chunk."""
        return range(0, self.queries, self.size)

    def whole(self) -> range:
        """Starts of the chunks that are full and read nothing outside the sequence."""
        offset = self.keys - self.queries
        low = _up(self._lead - offset, self.size) if self._lead > offset else 0
        high = self.queries - self.right - self.size
        return range(low, high + 1, self.size)

    def triangles(self, chunk: Chunk) -> tuple[slice, slice]:
        """The columns of a chunk in which the window closes anything."""
        low = max(self._lead - self.left + self.size - 1 - chunk.cut, 0)
        high = max(self.width - self.size + 1 - chunk.cut, low)
        return slice(0, low), slice(high, None)

    def distance(self, device: torch.device) -> Tensor:
        """Position of the key less that of the query, (C, W), in any full chunk."""
        key = torch.arange(self.width, device=device) - self._lead
        return key - torch.arange(self.size, device=device)[:, None]

    def band(self, slopes: Tensor | None, dtype: torch.dtype, device: torch.device) -> Tensor:
        """What is added to the logits of any chunk: (1, C, W), or (H, C, W) with slopes (H,)."""
        closed = torch.full((self.size, self.width), -torch.inf, dtype=dtype, device=device)
        before = closed.tril(self._lead - self.left - 1)
        band = closed.triu_(self._lead + self.right + 1).add_(before)[None]
        if slopes is None:
            return band
        # In the dtype in which masks count distances, so that both round alike.
        wide = slopes.to(torch.promote_types(slopes.dtype, dtype))[:, None, None]
        return band - (wide * self.distance(device).abs()).to(dtype)


@dataclass(frozen=True)
class Closed:
    """What padding and segments close beyond the window.

    real: bool (B, S), True = a real key. query_ids (B, L) and key_ids (B, S): both or neither.
    """

    real: Tensor | None
    query_ids: Tensor | None
    key_ids: Tensor | None

    def __bool__(self) -> bool:
        return self.real is not None or self.key_ids is not None

    def added_to(self, band: Tensor, samples: slice, chunk: Chunk) -> Tensor:
        """The band of one chunk, (H, C, W), with what is closed: (X, H, C, W) for X samples."""
        rows, columns = chunk.shape
        band = band[None, :, :rows, chunk.cut : chunk.cut + columns]
        if self.real is not None:
            band = band.masked_fill(~self.real[samples, None, None, chunk.keys], -torch.inf)
        if self.query_ids is not None and self.key_ids is not None:
            query = self.query_ids[samples, None, chunk.rows, None]
            key = self.key_ids[samples, None, None, chunk.keys]
            band = band.masked_fill(query != key, -torch.inf)
        return band

    def added_to_many(
        self, band: Tensor, sample: int, rows: slice, keys: slice, layout: Layout
    ) -> Tensor:
        """The same for X neighbouring whole chunks of one sample: (X, H, C, W)."""
        band = band[None]
        if self.real is not None:
            real = self.real[sample, keys].unfold(0, layout.width, layout.size)
            band = band.masked_fill(~real[:, None, None], -torch.inf)
        if self.query_ids is not None and self.key_ids is not None:
            query = self.query_ids[sample, rows].unfold(0, layout.size, layout.size)
            key = self.key_ids[sample, keys].unfold(0, layout.width, layout.size)
            band = band.masked_fill(query[:, None, :, None] != key[:, None, None], -torch.inf)
        return band


def chunks_of(x: Tensor, width: int, step: int) -> Tensor:
    """(H, N, D) -> views (X, H, width, D) that begin ``step`` apart and may overlap."""
    return x.unfold(1, width, step).permute(1, 0, 3, 2)


def _up(number: int, step: int) -> int:
    return max(-(-number // step), 1) * step
