"""What the parts of a mask may look like, and what is said when they do not."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from polyattn.errors import MaskError

if TYPE_CHECKING:
    from polyattn.mask import Mask

# Positions are int64, and a window's edge is a position plus its width.
_UNBOUNDED = 2**62
_POLARITY = "where True = may attend (~x if True hides)"


def got(value: object) -> str:
    """The value in a few words: dtype and shape of a tensor, the type of all else."""
    if isinstance(value, Tensor):
        return f"a {str(value.dtype).removeprefix('torch.')} tensor {tuple(value.shape)}"
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    return f"a {type(value).__name__}"


def wanted(expected: str, value: object, way_out: str) -> str:
    """One line: what was expected, what came, the way out."""
    return f"expected {expected}, got {got(value)}; {way_out}"


def count(name: str, value: object) -> int:
    """A host integer of zero or more."""
    if isinstance(value, bool) or not isinstance(value, (int, torch.SymInt)):
        raise MaskError(wanted(f"{name} to be an integer", value, "give a plain int"))
    if not 0 <= value < _UNBOUNDED:
        raise MaskError(wanted(f"{name} to be an integer >= 0", value, "count keys, from 0"))
    return cast(int, value)  # under tracing, a symbol that stands for one


def span(left: object, right: object) -> tuple[int | None, int | None]:
    """The two sides of a window."""
    if left is None and right is None:
        raise MaskError(
            "expected a window with a limit, got left=None and right=None; Mask.full() has none"
        )
    return (
        None if left is None else _side("left", left),
        None if right is None else _side("right", right),
    )


def _side(name: str, value: object) -> int:
    try:
        return count(name, value)
    except MaskError as error:
        raise MaskError(f"{error}, or None for no limit on that side") from None


def padding(keep: object) -> Tensor:
    """A bool tensor (B, S)."""
    expected = "padding as a bool tensor (B, S), True = real key"
    keep = _boolean(expected, keep)
    if keep.ndim != 2:
        raise MaskError(wanted(expected, keep, "a pattern over queries is Mask.dense(keep)"))
    return keep


def dense(keep: object) -> Tensor:
    """A bool tensor of rank 2 or 4."""
    expected = "a bool tensor (L, S) or (B, H, L, S), True = may attend"
    return _pattern(expected, _boolean(expected, keep))


def bias(values: object) -> Tensor:
    """A floating tensor of rank 2 or 4."""
    expected = "a floating tensor (L, S) or (B, H, L, S) to add to the logits"
    if isinstance(values, Tensor) and values.is_floating_point():
        return _pattern(expected, values)
    if isinstance(values, Tensor) and values.dtype == torch.bool:
        raise MaskError(wanted(expected, values, "a bool pattern is Mask.dense(keep)"))
    raise MaskError(wanted(expected, values, "use values.float(), or Mask.dense(values != 0)"))


def segments(name: str, ids: object) -> Tensor:
    """An integer tensor of rank 2."""
    expected = f"{name} as an integer tensor (batch, positions), equal = same segment"
    integers = isinstance(ids, Tensor) and not (
        ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool
    )
    if not isinstance(ids, Tensor) or not integers:
        way_out = "lengths on the host are Mask.documents(lengths), a bool keep Mask.padding(keep)"
        raise MaskError(wanted(expected, ids, way_out))
    if ids.ndim != 2:
        raise MaskError(wanted(expected, ids, "one sample is ids[None]"))
    return ids


def slopes(values: object) -> Tensor:
    """A floating tensor of rank 1."""
    expected = "slopes as a floating tensor (H,), one for each head"
    if not isinstance(values, Tensor) or not values.is_floating_point() or values.ndim != 1:
        raise MaskError(wanted(expected, values, "polyattn.alibi_slopes(heads) makes the usual"))
    return values


def _boolean(expected: str, keep: object) -> Tensor:
    if isinstance(keep, Tensor) and keep.dtype == torch.bool:
        return keep
    if isinstance(keep, Tensor) and keep.is_floating_point():
        raise MaskError(
            wanted(expected, keep, "numbers to add are Mask.bias(values), ones and zeros x != 0")
        )
    raise MaskError(wanted(expected, keep, "make it bool: keep != 0 if 1 means may attend"))


def _pattern(expected: str, values: Tensor) -> Tensor:
    if values.ndim in (2, 4):
        return values
    way_out = "name the missing size: x[:, None] for (B, L, S), x[None] for (H, L, S)"
    raise MaskError(wanted(expected, values, way_out))


def lengths(values: Sequence[int], total: int | None) -> tuple[list[int], int]:
    """Lengths on the host, and the number of keys."""
    expected = "lengths as a list of integers >= 0, one for each sample"
    if isinstance(values, Tensor):
        way_out = "use .tolist(), or Mask.padding(torch.arange(S) < lengths[:, None]) on a device"
        raise MaskError(wanted(expected, values, way_out))
    if not isinstance(values, Sequence) or isinstance(values, str) or not values:
        raise MaskError(wanted(expected, values, "one sample is Mask.lengths([n])"))
    rows = [count(f"lengths[{b}]", value) for b, value in enumerate(values)]
    longest = max(rows)
    width = longest if total is None else count("total", total)
    if width < longest:
        raise MaskError(
            f"expected total >= the longest length {longest}, got {width}; cut the"
            " lengths or raise the total"
        )
    return rows, width


def documents(values: Sequence[object]) -> tuple[tuple[int, ...], ...]:
    """Document lengths of each sample, all samples of one total."""
    expected = "documents as a list of lengths for each sample, such as [[3, 5], [4, 4]]"
    if isinstance(values, Tensor):
        raise MaskError(wanted(expected, values, "ids on a device are Mask.segments(ids)"))
    if not isinstance(values, Sequence) or isinstance(values, str) or not values:
        raise MaskError(wanted(expected, values, "one sample is Mask.documents([3, 5])"))
    nested = [isinstance(row, Sequence) and not isinstance(row, str) for row in values]
    if any(nested) and not all(nested):
        raise MaskError(wanted(expected, values, "give a list for every sample, or one flat list"))
    samples = cast(Sequence[Sequence[object]], values if all(nested) else [values])
    rows = tuple(
        tuple(_document(f"documents[{b}][{d}]", length) for d, length in enumerate(row))
        for b, row in enumerate(samples)
    )
    totals = [sum(row) for row in rows]
    if len(set(totals)) > 1:
        raise MaskError(
            f"expected documents of one total in every sample, got totals {totals};"
            " name what is left as a last document and close it with Mask.padding"
        )
    return rows


def _document(name: str, value: object) -> int:
    length = count(name, value)
    if length == 0:
        raise MaskError(wanted(f"{name} >= 1", value, "leave empty documents out"))
    return length


def takes_four(predicate: Callable[..., object]) -> bool:
    """Whether a function can be called with the four indices; True where it cannot be told."""
    try:
        inspect.signature(predicate).bind(0, 0, 0, 0)
    except TypeError:
        return False
    except ValueError:
        return True
    return True


def same_place(what: str, first: Tensor, second: Tensor) -> None:
    """Equal shapes on one device."""
    if first.shape[0] != second.shape[0]:
        raise MaskError(
            f"expected {what} of one batch, got {first.shape[0]} and"
            f" {second.shape[0]} samples; expand the smaller"
        )
    if first.shape != second.shape:
        raise MaskError(
            f"expected {what} of one shape, got {tuple(first.shape)} and"
            f" {tuple(second.shape)}; both speak of the same positions"
        )
    if first.device != second.device:
        raise MaskError(
            f"expected {what} on one device, got {first.device} and"
            f" {second.device}; use .to(device)"
        )


def shapes(
    mask: Mask,
    batch: int | None,
    heads: int | None,
    queries: int,
    keys: int,
    device: torch.device | str | None,
) -> None:
    """Every tensor of the mask against the sizes of a call."""
    if mask.real is not None:
        _exact("padding", mask.real, (("B", batch), ("S", keys)))
    if mask.key_ids is not None:
        _exact("key ids", mask.key_ids, (("B", batch), ("S", keys)))
    if mask.query_ids is not None:
        _exact("query ids", mask.query_ids, (("B", batch), ("L", queries)))
    if mask.slopes is not None:
        _exact("alibi slopes", mask.slopes, (("H", heads),))
    for keep in mask.kept:
        _broadcasts("a dense part", keep, batch, heads, queries, keys)
    for values in mask.biases:
        _broadcasts("a bias", values, batch, heads, queries, keys)
    if device is not None:
        _on(mask, torch.device(device))


def _exact(what: str, tensor: Tensor, sizes: tuple[tuple[str, int | None], ...]) -> None:
    for axis, (_, size) in enumerate(sizes):
        if size is not None and tensor.shape[axis] != size:
            names = ", ".join(name for name, _ in sizes)
            asked = ", ".join("any" if size is None else f"{size}" for _, size in sizes)
            raise MaskError(
                f"expected {what} of shape ({names}) = ({asked}), got"
                f" {tuple(tensor.shape)}; build the mask for this call's sizes"
            )


def _broadcasts(
    what: str, tensor: Tensor, batch: int | None, heads: int | None, queries: int, keys: int
) -> None:
    sizes = (batch, heads, queries, keys)
    for have, size in zip(reversed(tensor.shape), reversed(sizes), strict=False):
        if size is not None and have not in (1, size):
            asked = ", ".join("any" if size is None else f"{size}" for size in sizes)
            raise MaskError(
                f"expected {what} that broadcasts to (B, H, L, S) = ({asked}), got"
                f" {tuple(tensor.shape)}; each size must be 1 or the call's"
            )


def _on(mask: Mask, device: torch.device) -> None:
    tensors = (mask.real, mask.query_ids, mask.key_ids, mask.slopes, *mask.kept, *mask.biases)
    for tensor in tensors:
        if tensor is None:
            continue
        place = tensor.device
        unlike = place.index != device.index and None not in (place.index, device.index)
        if place.type != device.type or unlike:
            raise MaskError(
                f"expected the mask on {device}, where the queries are, got a tensor"
                f" on {place}; use mask.to({str(device)!r})"
            )


def meant(value: object) -> str:
    """What to say of a value that is no mask: the constructor that was meant."""
    if not isinstance(value, Tensor):
        way_out = "a function is Mask.where(fn), host lengths are Mask.lengths([...])"
        return wanted("a Mask or None", value, way_out)
    if value.is_floating_point():
        way_out = (
            "use Mask.bias(x) to add it to the logits, Mask.dense(x != 0) if it is ones and zeros"
        )
    elif value.dtype == torch.bool and value.ndim == 2:
        way_out = f"use Mask.padding(x) for (B, S), Mask.dense(x) for (L, S), {_POLARITY}"
    elif value.dtype == torch.bool:
        way_out = f"use Mask.dense(x), {_POLARITY}"
    else:
        way_out = "use Mask.segments(x) for segment ids, Mask.padding(x != 0) for ones at real keys"
    return wanted("a Mask or None", value, way_out)
