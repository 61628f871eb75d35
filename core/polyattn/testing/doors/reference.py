"""What a function is compared with while it is found out: softmax attention in float64."""

from __future__ import annotations

import torch
from torch import Tensor

from polyattn.testing.tools.cases import Sample

LOOSE = 1e-4
"""Relative error up to which a computation is recognised. How exact it is, the checks say."""


def softmax_of(
    sample: Sample,
    keep: Tensor | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """Softmax attention in float64; ``keep`` and ``bias`` broadcast to (B, H, L, S).

    By matrix products: a search compares with hundreds of these. Rows without a key give zeros.
    """
    wide = sample.to(torch.float64)
    scale = sample.q.shape[3] ** -0.5 if scale is None else scale
    logits = wide.q @ wide.k.mT * scale
    if bias is not None:
        logits = logits + bias
    if keep is not None:
        logits = logits.masked_fill(~keep, -torch.inf)
    empty = (logits == -torch.inf).all(-1, keepdim=True)
    return logits.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0) @ wide.v


def distance(got: Tensor, expected: Tensor) -> float:
    """Largest error relative to the largest expected value; infinite for NaN."""
    if not bool(got.isfinite().all()):
        return float("inf")
    error = (got.detach().double() - expected).abs().max()
    return float(error / expected.abs().max().clamp(min=1e-30))


def triangle(queries: int, keys: int, *, last: bool = True) -> Tensor:
    """Causal (L, S), the queries at the last positions or at the first."""
    return torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries if last else 0)
