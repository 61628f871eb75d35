"""The masks that the checks plant. Random masks never hit the row that no key serves, nor tell
two samples apart by luck: what matters is planted, and every sample and head gets its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from polyattn.capabilities import PARTS, Capabilities, Part
from polyattn.mask import Mask
from polyattn.testing.tools.cases import Shape, normal


def random_keep(*size: int, seed: int) -> Tensor:
    """About two thirds open, drawn per element, with at least one open key in each row."""
    keep = normal(*size, seed=seed) > -0.4
    if size[-1]:
        keep.scatter_(-1, keep.sum(-1, keepdim=True) % size[-1], True)
    return keep


def padding_keep(shape: Shape, *, left: bool = False) -> Tensor:
    """(B, S): sample b has b eighths of its keys padded (at least one stays), on one side."""
    step = max(1, shape.keys // 8)
    padded = (torch.arange(shape.batch) * step).clamp(max=shape.keys - 1).unsqueeze(1)
    slots = torch.arange(shape.keys)
    return slots >= padded if left else slots < shape.keys - padded


def segment_ids(shape: Shape) -> tuple[Tensor, Tensor]:
    """Ids of queries (B, L) and keys (B, S), cut at a place of each sample's own.

    The queries are the last L positions, so that every one finds its own segment among the keys.
    """
    cut = (torch.arange(shape.batch) + max(2, shape.keys // 3)).unsqueeze(1)
    ids = (torch.arange(max(shape.queries, shape.keys)) >= cut).long()
    return ids[:, ids.shape[1] - shape.queries :], ids[:, ids.shape[1] - shape.keys :]


def slopes(heads: int) -> Tensor:
    """One positive slope for each head."""
    return torch.tensor([0.5 / (h + 1) for h in range(heads)])


def _segments(shape: Shape, seed: int) -> Mask:
    queries, keys = segment_ids(shape)
    return Mask.segments(queries, keys)


def _dense(shape: Shape, seed: int) -> Mask:
    size = (shape.batch, shape.heads, shape.queries, shape.keys)
    keep = random_keep(*size, seed=seed + 71)
    # With the first key and the query's own, a row stays open under any other part as well.
    keys = torch.arange(shape.keys)
    own = keys == torch.arange(shape.queries)[:, None] + shape.keys - shape.queries
    keep |= own
    keep[..., 0] = True
    return Mask.dense(keep)


def _bias(shape: Shape, seed: int) -> Mask:
    size = (shape.batch, shape.heads, shape.queries, shape.keys)
    return Mask.bias(normal(*size, seed=seed + 72))


PLAIN: dict[Part, Callable[[Shape, int], Mask]] = {
    "causal": lambda shape, seed: Mask.causal(),
    "window": lambda shape, seed: Mask.window(2, 1),
    "padding": lambda shape, seed: Mask.padding(padding_keep(shape)),
    "segments": _segments,
    "dense": _dense,
    "bias": _bias,
    "alibi": lambda shape, seed: Mask.alibi(slopes(shape.heads)),
}
"""One plain mask for each part, all rows of which see a key where L <= S."""


def sample_of(mask: Mask, batch: int, b: int) -> Mask:
    """The mask of sample ``b`` alone, out of a mask over ``batch`` samples."""

    def own(x: Tensor | None) -> Tensor | None:
        return None if x is None else x[b : b + 1]

    def pick(x: Tensor) -> Tensor:
        return x[b : b + 1] if x.dim() == 4 and x.shape[0] == batch else x

    return dataclasses.replace(
        mask,
        real=own(mask.real),
        query_ids=own(mask.query_ids),
        key_ids=own(mask.key_ids),
        document_lengths=None,
        kept=tuple(pick(x) for x in mask.kept),
        biases=tuple(pick(x) for x in mask.biases),
    )


def needed(claims: Capabilities, shape: Shape, seed: int = 0) -> Mask:
    """The mask that every call must have: full, causal, or what the variant is made for.

    Where that is segments, all is one document: so are the first tokens alone, and some of them.
    """
    mask = combine((part for part in PARTS if part in claims.requires - {"segments"}), shape, seed)
    if "segments" in claims.requires:
        queries, keys = (torch.zeros(shape.batch, n).long() for n in (shape.queries, shape.keys))
        mask = mask & Mask.segments(queries, keys)
    return mask


def combine(parts: Iterable[Part], shape: Shape, seed: int = 0) -> Mask:
    """The conjunction of the plain masks of these parts."""
    mask = Mask.full()
    for part in parts:
        mask = mask & PLAIN[part](shape, seed)
    return mask


def learned(mask: Mask) -> Mask:
    """The same with biases and slopes that require gradients, in float64."""

    def leaf(x: Tensor) -> Tensor:
        return x.detach().double().clone().requires_grad_()

    return dataclasses.replace(
        mask,
        biases=tuple(leaf(x) for x in mask.biases),
        slopes=None if mask.slopes is None else leaf(mask.slopes),
    )


def learned_of(mask: Mask) -> dict[str, Tensor]:
    """What of a mask requires gradients: bias0, bias1, ... and slopes."""
    found = {f"bias{i}": x for i, x in enumerate(mask.biases)}
    if mask.slopes is not None:
        found["slopes"] = mask.slopes
    return {name: x for name, x in found.items() if x.requires_grad}


def relearned(mask: Mask, tensors: Mapping[str, Tensor]) -> Mask:
    """The mask with these in place of its ``learned_of``."""
    return dataclasses.replace(
        mask,
        biases=tuple(tensors.get(f"bias{i}", x) for i, x in enumerate(mask.biases)),
        slopes=tensors.get("slopes", mask.slopes),
    )


def with_part(claims: Capabilities, part: Part, shape: Shape, seed: int = 0) -> Mask:
    """What must be there anyway, and one part more."""
    return combine(sorted(claims.requires | {part}), shape, seed)
