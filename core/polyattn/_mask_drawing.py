"""A mask for people: its parts in one line, and the little matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from polyattn.errors import MaskError

if TYPE_CHECKING:
    from polyattn.mask import Mask

_DEFAULT, _LARGEST = 8, 16


def text(mask: Mask) -> str:
    """The parts as they would be written, with shapes in the place of tensors."""
    parts = []
    if mask.prefix is not None:
        parts.append(f"Mask.causal(prefix={mask.prefix})" if mask.prefix else "Mask.causal()")
    if mask.span is not None:
        parts.append(f"Mask.window({mask.span[0]}, {mask.span[1]})")
    if mask.real is not None:
        parts.append(f"Mask.padding({_kind(mask.real)})")
    if mask.document_lengths is not None:
        parts.append(f"Mask.documents({_few(mask.document_lengths)})")
    elif mask.key_ids is not None:
        ids = [_kind(ids) for ids in (mask.query_ids, mask.key_ids) if ids is not None]
        parts.append(f"Mask.segments({', '.join(ids)})")
    parts += [f"Mask.dense({_kind(kept)})" for kept in mask.kept]
    parts += [f"Mask.where({getattr(f, '__name__', type(f).__name__)})" for f in mask.predicates]
    parts += [f"Mask.bias({_kind(values)})" for values in mask.biases]
    if mask.slopes is not None:
        parts.append(f"Mask.alibi({_kind(mask.slopes)})")
    return " & ".join(parts) or "Mask.full()"


def _few(rows: tuple[tuple[int, ...], ...]) -> str:
    if sum(map(len, rows)) <= 8:
        return str([list(row) for row in rows])
    return f"{sum(map(len, rows))} in {len(rows)} samples"


def _kind(tensor: object) -> str:
    if not isinstance(tensor, Tensor):  # a pytree may be carrying something else
        return type(tensor).__name__
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def draw(mask: Mask, queries: int, keys: int, sample: int, head: int) -> str:
    """One line for each query."""
    keep = mask.keep(queries, keys, max(_batch(mask), sample + 1), max(_heads(mask), head + 1))
    if keep is None:
        return "\n".join("#" * keys for _ in range(queries))
    matrix = keep[sample % keep.shape[0], head % keep.shape[1]].expand(queries, keys)
    return "\n".join("".join("#" if seen else "." for seen in row) for row in matrix.tolist())


def representation(mask: Mask) -> str:
    """The parts, and the matrix where it is small and its tensors can be read at no cost."""
    if not _readable(mask):
        return text(mask)
    queries, keys = _sizes(mask)
    if max(queries, keys) > _LARGEST or not mask.parts:
        return text(mask)
    try:
        rows = draw(mask, queries, keys, 0, 0).replace("\n", "\n  ")
    except (MaskError, RuntimeError):
        # Parts that fit no call together, or a transform that lets no value be read: a mask
        # must be printable all the same.
        return text(mask)
    one_of_many = "" if _batch(mask) * _heads(mask) == 1 else "  (sample 0, head 0)"
    return f"{text(mask)}{one_of_many}\n  {rows}"


def _tensors(mask: Mask) -> list[Tensor]:
    held = (mask.real, mask.query_ids, mask.key_ids, mask.slopes, *mask.kept, *mask.biases)
    return [tensor for tensor in held if tensor is not None]


def _readable(mask: Mask) -> bool:
    # Reading a tensor of a device waits for it; while tracing there is nothing to read.
    if mask.predicates or torch.compiler.is_compiling():
        return False
    plain = (Tensor, torch.nn.Parameter)
    return all(type(t) in plain and t.device.type == "cpu" for t in _tensors(mask))


def _sizes(mask: Mask) -> tuple[int, int]:
    """L and S where the tensors tell, else a few."""
    patterns = (*mask.kept, *mask.biases)
    ids = [t.shape[1] for t in (mask.real, mask.key_ids) if t is not None]
    keys = max([*ids, *(t.shape[-1] for t in patterns)], default=_DEFAULT)
    if mask.query_ids is not None:
        return mask.query_ids.shape[1], keys
    return max((t.shape[-2] for t in patterns if t.shape[-2] > 1), default=keys), keys


def _batch(mask: Mask) -> int:
    flat = [t.shape[0] for t in (mask.real, mask.key_ids) if t is not None]
    return max([*flat, *(t.shape[0] for t in (*mask.kept, *mask.biases) if t.ndim == 4)], default=1)


def _heads(mask: Mask) -> int:
    slopes = [] if mask.slopes is None else [mask.slopes.shape[0]]
    patterns = [t.shape[1] for t in (*mask.kept, *mask.biases) if t.ndim == 4]
    return max([*slopes, *patterns], default=1)
