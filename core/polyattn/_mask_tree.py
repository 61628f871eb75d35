"""A mask as a pytree: its tensors are the children, all else is context.

The lengths of documents are left behind. A batch layout in the context would be another tree
for each batch (another graph, a refused call of an exported program), and a map over the ids
can make them untrue; the ids alone decide.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.utils._pytree import GetAttrKey

from polyattn.errors import MaskError

if TYPE_CHECKING:
    from polyattn.mask import Mask

_SINGLE = ("real", "query_ids", "key_ids", "slopes")
_SEVERAL = ("kept", "biases")

Context = tuple[Any, ...]


def _named(mask: Mask) -> list[tuple[str, int, Tensor]]:
    found = [(name, 0, getattr(mask, name)) for name in _SINGLE]
    for name in _SEVERAL:
        found += [(name, n, tensor) for n, tensor in enumerate(getattr(mask, name))]
    return [entry for entry in found if entry[2] is not None]


def flatten(mask: Mask) -> tuple[list[Tensor], Context]:
    """The tensors there are, and (their fields' names, prefix, span, predicates)."""
    named = _named(mask)
    names = tuple(name for name, _, _ in named)
    return [tensor for _, _, tensor in named], (names, mask.prefix, mask.span, mask.predicates)


def flatten_with_keys(mask: Mask) -> tuple[list[tuple[Any, Tensor]], Context]:
    """As `flatten`, with the path to each tensor, for messages."""
    tensors, context = flatten(mask)
    paths = [GetAttrKey(name if name in _SINGLE else f"{name}_{n}") for name, n, _ in _named(mask)]
    return list(zip(paths, tensors, strict=True)), context


def fields(tensors: Iterable[Any], context: Context) -> dict[str, Any]:
    """What `Mask(...)` is made of again; the children may be anything, as pytrees allow."""
    names, prefix, span, predicates = context
    held: dict[str, Any] = {"prefix": prefix, "span": span, "predicates": predicates}
    for name, tensor in zip(names, tensors, strict=True):
        held[name] = (*held.get(name, ()), tensor) if name in _SEVERAL else tensor
    return held


def to_json(context: Context) -> Any:
    """The context as JSON, for an exported program that is saved."""
    names, prefix, span, predicates = context
    if predicates:
        raise MaskError(
            "expected a mask that can be saved, got Mask.where with a function;"
            " use Mask.dense(mask.keep(L, S, batch, heads))"
        )
    return [list(names), prefix, None if span is None else list(span)]


def from_json(saved: Any) -> Context:
    """The context that `to_json` wrote."""
    names, prefix, span = saved
    return tuple(names), prefix, None if span is None else tuple(span), ()


def tensor_signature(mask: Mask) -> tuple[object, ...]:
    """Dtype, rank and need of a gradient for each tensor, and how many predicates there are."""
    described = tuple(
        (name, tensor.dtype, tensor.ndim, tensor.requires_grad) for name, _, tensor in _named(mask)
    )
    return (*described, len(mask.predicates))
