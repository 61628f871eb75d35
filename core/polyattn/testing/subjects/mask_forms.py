"""The dense form of a mask and what it adds to the logits, and where two of them differ."""

from __future__ import annotations

import torch
from torch import Tensor

from polyattn.mask import Mask
from polyattn.testing.results import Mismatch, Seen
from polyattn.testing.subjects.mask_meanings import BATCH, HEADS
from polyattn.testing.subjects.sequence import blaming
from polyattn.testing.tools.numerics import compare


def keep_of(mask: Mask, queries: int, keys: int, given: str) -> Tensor:
    """The dense form, bool (B, H, L, S)."""
    with blaming(given):
        keep = mask.keep(queries, keys, BATCH, HEADS)
        if keep is None:
            return torch.ones(BATCH, HEADS, queries, keys, dtype=torch.bool)
        return keep.expand(BATCH, HEADS, queries, keys)


def bias_of(mask: Mask, queries: int, keys: int, given: str) -> Tensor:
    """What is added, float64 (B, H, L, S)."""
    with blaming(given):
        bias = mask.logit_bias(queries, keys, dtype=torch.float64)
        if bias is None:
            return torch.zeros(BATCH, HEADS, queries, keys, dtype=torch.float64)
        return bias.expand(BATCH, HEADS, queries, keys)


def same_keep(what: str, got: Tensor, want: Tensor, given: str) -> None:
    """Fail at the first place that differs."""
    if torch.equal(got, want):
        return
    index = tuple(int(n) for n in (got != want).nonzero()[0])
    told = "is open and should be closed" if bool(got[index]) else "is closed and should be open"
    many = int((got != want).sum())
    what = f"{what} {told} at (b, h, i, j) = {index}, and {many} places in all differ"
    raise Mismatch(Seen(what=what, given=given, index=index))


def same_bias(what: str, got: Tensor, want: Tensor, given: str) -> None:
    """Both -inf at the same places, and equal numbers elsewhere."""
    shut = want == -torch.inf
    same_keep(f"{what}: an entry of -inf", got != -torch.inf, ~shut, given)
    finite = (x.masked_fill(shut, 0.0) for x in (got, want))
    compare(what, *finite, tolerance=1e-6, given=given)


def joined(masks: list[Mask]) -> Mask:
    """All of them at once, from the left."""
    total = masks[0]
    for mask in masks[1:]:
        total = total & mask
    return total
