"""How the kernels of `linear` walk along a sequence: some chunks at a time, through reused buffers.

Buffers that are reused stay in the cache; whole feature tensors cost more in page faults than the
attention itself. What happens inside chunks is done for R of them at once, as many as there is
work enough to outweigh the calls; what goes from chunk to chunk, one by one. Half types are summed
in float32.

Letters: B batch, H query heads, K key heads, G = H / K, N = B K, L queries, S keys, D head width,
V value width, C chunk, R chunks that go together, P = N R. State: s (B, K, D, V), z (B, K, 1, D).
`keep` (B, S) is true for real keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat

import torch
from torch import Tensor

CHUNK = 64
"""Tokens per chunk. Work inside a chunk is quadratic, work per chunk is fixed; 64 was the best of
32, 64, 128 and 256 at head widths of 64, on a CPU."""

ROWS = 512
"""Tokens times key heads that go together, where heads are few: for less, calls cost the most."""


class Chunks:
    """Cuts a sequence, and reads its parts into buffers in the layout of the sums.

    s: a state, for its sizes and type. whole: where no order matters, a part is one chunk.
    """

    def __init__(
        self, s: Tensor, length: int, keep: Tensor | None = None, *, whole: bool = False
    ) -> None:
        self.key_heads, self.dtype, self.device = s.shape[1], s.dtype, s.device
        together = CHUNK * max(1, ROWS // (CHUNK * s.shape[0] * s.shape[1]))
        self.chunk = together if whole else CHUNK
        self.sizes: list[int] = []
        for start in range(0, length, together):
            rest = min(together, length - start) % self.chunk
            full = min(together, length - start) - rest
            self.sizes += [size for size in (full, rest) if size]
        self.weight = None if keep is None else keep.to(s.dtype)[:, None, :, None]
        self.held: dict[str, Tensor] = {}

    def room(self, name: str, *shape: int) -> Tensor:
        held = self.held.get(name)
        if held is None or held.shape != shape:
            held = self.held[name] = torch.empty(shape, dtype=self.dtype, device=self.device)
        return held

    def per_key(self, x: Tensor) -> list[Tensor]:
        """(B, K, S, *) -> parts (B, K, R, C, *), views."""
        parts = torch.split(x, self.sizes, -2)
        return [torch.unflatten(p, -2, (max(1, p.shape[-2] // self.chunk), -1)) for p in parts]

    def per_query(self, x: Tensor) -> list[Tensor]:
        """(B, H, L, *) -> parts (B, K, R, G, C, *), views."""
        grouped = torch.unflatten(x, 1, (self.key_heads, -1))
        return [part.transpose(2, 3) for part in self.per_key(grouped)]

    def weights(self) -> list[Tensor] | Iterator[None]:
        """Parts (B, 1, R, C, 1) of 1 for a real key and 0 for padding, or None throughout."""
        return repeat(None, len(self.sizes)) if self.weight is None else self.per_key(self.weight)

    def plain(self, name: str, x: Tensor) -> Tensor:
        """(B, K, R, C, *) -> (P, C, *), copied only where it must be."""
        if x.dtype != self.dtype or x.shape[2] > 1:
            x = self.room(name, *x.shape).copy_(x)
        return x.flatten(0, 2)

    def queries(self, x: Tensor) -> Tensor:
        """(B, K, R, G, C, D) -> c phi(x), (P, G C, D), with a factor c > 0 per row.

        Only ratios of the features of one query matter, so a row whose entries are all negative
        is moved up to a largest entry of 0: no query is too small for the sums.
        """
        return self._features("queries", x, shifted=True)

    def keys(self, x: Tensor, weight: Tensor | None) -> Tensor:
        """(B, K, R, C, D) -> phi(x), (P, C, D), zero for padding."""
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
        return out.view(x.shape[0] * x.shape[1] * x.shape[2], -1, x.shape[-1])

    def product(self, name: str, a: Tensor, b: Tensor) -> Tensor:
        return torch.bmm(a, b, out=self.room(name, a.shape[0], a.shape[1], b.shape[2]))

    def scores(self, name: str, a: Tensor, b: Tensor, added: Tensor | None = None) -> Tensor:
        """Products of rows a (P, G C, *) with rows b (P, C, *) not later: (P, G C, C)."""
        product = self.product(name, a, b.mT)
        if added is not None:
            product += added
        product.view(-1, b.shape[1], b.shape[1]).tril_()
        return product

    def before(
        self,
        sums: tuple[Tensor, Tensor],
        a: Tensor,
        b: Tensor,
        gain: Tensor,
        *,
        backwards: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """What each chunk finds, (P, D, V) and (P, 1, D), where each adds a^T b and gain to sums.

        The sums (N, D, V) and (N, 1, D) move on in place; a chunk that goes alone finds them as
        they are, and enters by `after`, in one operation with its product.
        """
        chunks = a.shape[0] // sums[0].shape[0]
        if chunks == 1:
            return sums
        return (
            self._met("met", sums[0], self.product("added", a.mT, b), chunks, backwards),
            self._met("met by norm", sums[1], gain, chunks, backwards),
        )

    def after(self, sums: tuple[Tensor, Tensor], a: Tensor, b: Tensor, gain: Tensor) -> None:
        """The rest of `before`, when what was found has been read."""
        if a.shape[0] == sums[0].shape[0]:
            sums[0].baddbmm_(a.mT, b)
            sums[1].add_(gain)

    def _met(self, name: str, total: Tensor, added: Tensor, chunks: int, backwards: bool) -> Tensor:
        found = self.room(name, *added.shape)
        places, gains = (torch.unflatten(x, 0, (-1, chunks)).unbind(1) for x in (found, added))
        steps = [*zip(places, gains, strict=True)]
        for place, gain in reversed(steps) if backwards else steps:
            place.copy_(total)
            total += gain
        return found

    def divided(self, g: Tensor, out: Tensor, den: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of numerator (P, G C, V) and denominator (P, G C, 1) of out = num / den."""
        to_num = torch.div(g, den, out=self.room("to_num", *g.shape))
        to_den = torch.mul(to_num, out, out=self.room("to_den", *g.shape)).sum(-1).neg_()
        rows = g.shape[0] * g.shape[1] * g.shape[2]
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
