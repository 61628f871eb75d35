"""Softmax over blocks of keys with a running maximum, as it is written without rescaling."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from polyattn.testing.doors.causes import Cause
from polyattn.testing.doors.function import Flow
from polyattn.testing.doors.probe import Probe
from polyattn.testing.doors.reference import LOOSE, distance, softmax_of, triangle
from polyattn.testing.tools.cases import Sample

BLOCKS = (1, 2, 3, 4, 5, 8, 16, 32, 64, 128)
"""Keys to a block."""
SEVERAL = 144
"""Keys that are several blocks of each of these sizes."""
RESCALED = (
    "higher = torch.maximum(top, scores.amax(-1, keepdim=True))  # scores of this block\n"
    "shrink, odds = (top - higher).exp(), (scores - higher).exp()\n"
    "total = total * shrink + odds.sum(-1, keepdim=True)\n"
    "out = out * shrink + odds @ v_block\n"
    "top = higher  # at last: out / total"
)


def unrescaled(sample: Sample, keep: Tensor | None) -> Iterator[tuple[Cause, Tensor]]:
    """What comes where a later block raises the maximum and earlier sums are left as they were.

    An odd that was taken by the maximum of its time stays so; with rescaling it is as if all were
    taken by the last. ``keep`` broadcasts to (B, H, L, S); each block size that makes several.
    """
    wide = sample.to(torch.float64)
    logits = wide.q @ wide.k.mT * sample.q.shape[3] ** -0.5
    if keep is not None:
        logits = logits.masked_fill(~keep, -torch.inf)
    right = _odds(logits, logits.amax(-1, keepdim=True))
    for block in (size for size in BLOCKS if size < sample.lengths[1]):
        tops = torch.stack([x.amax(-1) for x in logits.split(block, -1)], -1).cummax(-1).values
        stale = _odds(logits, tops.repeat_interleave(block, -1)[..., : sample.lengths[1]])
        for what, outs, totals in (
            ("neither the sum nor the output so far is", stale, stale),
            ("the output so far is not", stale, right),
            ("the sum so far is not", right, stale),
        ):
            told = f"keys come in blocks, and {what} rescaled when the running maximum rises"
            seen = f"computed in that way with blocks of {block}, the numbers agree to four digits"
            expected = outs @ wide.v / totals.sum(-1, keepdim=True)
            yield Cause(name=told, write=RESCALED, seen=seen), expected


def _odds(logits: Tensor, tops: Tensor) -> Tensor:
    """exp(logits - tops); zero for what is closed, where nothing was open so far as well."""
    return (logits - tops).exp().nan_to_num(0.0)


def blocks_cause(probe: Probe, flow: Flow) -> Cause | None:
    """Whether it fails so beyond one block, where it is right at a few keys."""
    sample = probe.sample(heads=1, queries=SEVERAL, keys=SEVERAL)
    got = probe.tried(sample)
    keep = triangle(*sample.lengths) if flow == "causal" else None
    if got is None or distance(got, softmax_of(sample, keep)) < LOOSE:
        return None
    for cause, expected in unrescaled(sample, keep):
        if distance(got, expected) < LOOSE:
            return cause
    return None
