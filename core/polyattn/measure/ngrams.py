"""Byte n-gram models, for scale: what counting alone reaches on the same held-out bytes.

The order is the number of bytes of context. A context's counts are interpolated with those of the
context one byte shorter by Witten and Bell's rule, down to the uniform distribution over 256:

    p_k(s | c) = (count(c s) + kinds(c) p_{k-1}(s | c')) / (count(c) + kinds(c))

kinds(c) is the number of different bytes seen after c. Source: Witten and Bell, "The zero-frequency
problem", IEEE Transactions on Information Theory 37(4), 1991.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

HIGHEST = 6
"""Context and symbol are packed into one 64-bit integer, a byte each."""


@dataclass(frozen=True)
class _Counts:
    """The counts of one context length k, as sorted codes. grams: context and symbol. contexts:
    the context alone, with its total and the number of kinds of symbols after it."""

    grams: Tensor
    gram_counts: Tensor
    contexts: Tensor
    totals: Tensor
    kinds: Tensor


def bits_per_byte(train: bytes, held_out: bytes, orders: tuple[int, ...]) -> dict[int, float]:
    """Mean code length in bits of each byte of ``held_out`` under models of the given orders.

    The first bytes of ``held_out`` have only as much context as it holds itself. Raises ValueError
    for an empty text or an order outside 0 to ``HIGHEST``.
    """
    if not train or not held_out:
        raise ValueError("expected bytes to count and bytes to judge, got an empty text")
    if not orders or min(orders) < 0 or max(orders) > HIGHEST:
        raise ValueError(f"expected orders from 0 to {HIGHEST}, got {orders}")
    seen, judged = _as_tensor(train), _as_tensor(held_out)
    probability = torch.full((len(judged),), 1 / 256, dtype=torch.float64)
    found: dict[int, float] = {}
    for order in range(max(orders) + 1):
        if order < min(len(seen), len(judged)):
            probability[order:] = _interpolate(
                _count(_codes(seen, order)), _codes(judged, order), probability[order:]
            )
        if order in orders:
            found[order] = float(-probability.log2().mean())
    return found


def _as_tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).to(torch.int64)


def _codes(data: Tensor, order: int) -> Tensor:
    """(N - order,) integers: ``order`` bytes of context and the byte that follows."""
    length = len(data) - order
    codes = torch.zeros(length, dtype=torch.int64)
    for offset in range(order + 1):
        codes = codes * 256 + data[offset : offset + length]
    return codes


def _count(codes: Tensor) -> _Counts:
    grams, gram_counts = torch.unique(codes, return_counts=True)
    contexts, owner, kinds = torch.unique_consecutive(
        grams >> 8, return_inverse=True, return_counts=True
    )
    totals = torch.zeros_like(kinds).index_add_(0, owner, gram_counts)
    return _Counts(grams, gram_counts, contexts, totals, kinds)


def _interpolate(counts: _Counts, codes: Tensor, lower: Tensor) -> Tensor:
    """Probabilities of one order from those of the order below, (N,) both."""
    total = _look_up(counts.contexts, counts.totals, codes >> 8)
    kinds = _look_up(counts.contexts, counts.kinds, codes >> 8)
    count = _look_up(counts.grams, counts.gram_counts, codes)
    mixed = (count + kinds * lower) / (total + kinds).clamp(min=1)
    return torch.where(total > 0, mixed, lower)


def _look_up(keys: Tensor, values: Tensor, wanted: Tensor) -> Tensor:
    """The values of the wanted keys, 0 where a key is absent. ``keys`` are sorted."""
    at = torch.searchsorted(keys, wanted).clamp(max=len(keys) - 1)
    return torch.where(keys[at] == wanted, values[at], 0)
