"""A mask lowered to tensors, each in one vectorised go and without reading values back.

Letters: B batch, H heads, L queries, S keys, R query rows that were picked.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from polyattn import _mask_checks as checks
from polyattn.errors import MaskError

if TYPE_CHECKING:
    from polyattn.mask import Mask, Predicate

Device = torch.device | str | None


def device_of(mask: Mask, device: Device) -> Device:
    """The device asked for, or that of the mask's tensors."""
    if device is not None:
        return device
    for tensor in (mask.real, mask.key_ids, mask.slopes, *mask.kept, *mask.biases):
        if tensor is not None:
            return tensor.device
    return None


def positions(queries: int, keys: int, device: Device) -> Tensor:
    """Where the queries sit among the keys, (L,): they are the last L of S."""
    return torch.arange(queries, device=device) + (keys - queries)


def reach(mask: Mask, position: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """The first and last key of causal and window, (L,), both within; None is no limit.

    Together the two leave every query one unbroken run of keys.
    """
    first = last = None
    if mask.prefix is not None:
        last = position.clamp(min=mask.prefix - 1)
    if mask.span is not None:
        left, right = mask.span
        if left is not None:
            first = position - left
        if right is not None:
            last = position + right if last is None else torch.minimum(last, position + right)
    return first, last


def segment_ids(mask: Mask, queries: int) -> tuple[Tensor, Tensor] | None:
    """Ids of queries (B, L) and keys (B, S)."""
    if mask.key_ids is None:
        return None
    if mask.query_ids is not None:
        return mask.query_ids, mask.key_ids
    return mask.key_ids[:, mask.key_ids.shape[1] - queries :], mask.key_ids


def keep(
    mask: Mask,
    queries: int,
    keys: int,
    batch: int | None,
    heads: int | None,
    device: Device,
) -> Tensor | None:
    """All that closes, as one bool tensor of four sizes."""
    device = device_of(mask, device)
    terms = _ordered(mask, positions(queries, keys, device), keys)
    if mask.real is not None:
        terms.append(mask.real[:, None, None, :])
    ids = segment_ids(mask, queries)
    if ids is not None:
        terms.append((ids[0][:, :, None] == ids[1][:, None, :])[:, None])
    terms += [_four(kept) for kept in mask.kept]
    terms += [_four(values) != -torch.inf for values in mask.biases]
    for predicate in mask.predicates:
        terms.append(_ask(predicate, queries, keys, batch, heads, device))
    return reduce(torch.logical_and, terms) if terms else None


def _ordered(mask: Mask, position: Tensor, keys: int) -> list[Tensor]:
    first, last = reach(mask, position)
    key = torch.arange(keys, device=position.device)
    terms = []
    if first is not None:
        terms.append(key >= first[:, None])
    if last is not None:
        terms.append(key <= last[:, None])
    return [_four(term) for term in terms]


def _four(values: Tensor) -> Tensor:
    return values if values.ndim == 4 else values[None, None]


def _ask(
    predicate: Predicate,
    queries: int,
    keys: int,
    batch: int | None,
    heads: int | None,
    device: Device,
) -> Tensor:
    if batch is None or heads is None:
        raise MaskError(
            f"expected batch and heads for Mask.where, got batch={batch} and heads={heads};"
            " use mask.keep(L, S, batch, heads)"
        )
    b = torch.arange(batch, device=device).view(-1, 1, 1, 1)
    h = torch.arange(heads, device=device).view(1, -1, 1, 1)
    i = torch.arange(queries, device=device).view(1, 1, -1, 1)
    j = torch.arange(keys, device=device).view(1, 1, 1, -1)
    try:
        answer = predicate(b, h, i, j)
    except TypeError as error:
        if not checks.takes_four(predicate):
            expected = "Mask.where's function to take the four indices (b, h, i, j)"
            raise MaskError(
                f"{expected}, got {error}; name those it does not read as well"
            ) from None
        raise
    sizes = (batch, heads, queries, keys)
    expected = f"Mask.where's function to give a bool tensor that broadcasts to {sizes}"
    if not isinstance(answer, Tensor) or answer.dtype != torch.bool:
        raise MaskError(checks.wanted(expected, answer, "compare index tensors, such as i >= j"))
    fits = all(
        have in (1, size)
        for have, size in zip(reversed(answer.shape), reversed(sizes), strict=False)
    )
    if answer.ndim > 4 or not fits:
        raise MaskError(checks.wanted(expected, answer, "use the index tensors' own shapes"))
    return answer.view((1,) * (4 - answer.ndim) + tuple(answer.shape))


def logit_bias(
    mask: Mask, queries: int, keys: int, dtype: torch.dtype, device: Device
) -> Tensor | None:
    """Biases and alibi, summed in the widest dtype among them and then cast."""
    terms = [_four(values) for values in mask.biases]
    if mask.slopes is not None:
        position = positions(queries, keys, device_of(mask, device))
        terms.append(distances(mask.slopes, position, keys, dtype))
    if not terms:
        return None
    return _cast(reduce(_add, terms), dtype)


def distances(
    slopes: Tensor, position: Tensor, keys: int, dtype: torch.dtype = torch.float32
) -> Tensor:
    """-slope x distance, (1, H, L, S), in float32 at least: half cannot count to 2,049."""
    least = torch.promote_types(dtype, torch.float32)
    wide = slopes.to(torch.promote_types(slopes.dtype, least))
    key = torch.arange(keys, device=position.device)
    distance = (position[:, None] - key).abs()
    return -wide.view(1, -1, 1, 1) * distance


def _add(first: Tensor, second: Tensor) -> Tensor:
    # Two finite numbers must not add up to -inf, which would close what neither closes.
    total = first + second
    limit = torch.finfo(total.dtype).max
    return torch.where(first.isinf() | second.isinf(), total, total.clamp(-limit, limit))


def _cast(values: Tensor, dtype: torch.dtype) -> Tensor:
    limit = torch.finfo(dtype).max
    if limit < torch.finfo(values.dtype).max:
        # finfo.min of a wide dtype would become the -inf of a narrow one, and close. The limit
        # must be exact: bfloat16 rounds float16's up.
        values = values.to(torch.promote_types(values.dtype, dtype))
        values = torch.where(values.isinf(), values, values.clamp(-limit, limit))
    return values.to(dtype)


def visible_rows(
    mask: Mask,
    queries: int,
    keys: int,
    batch: int | None,
    heads: int | None,
    device: Device,
) -> Tensor | None:
    """Rows that see a key, (B, H, L, 1) with sizes of 1."""
    device = device_of(mask, device)
    if keys == 0:
        return torch.zeros(1, 1, queries, 1, dtype=torch.bool, device=device)
    if mask.kept or mask.predicates or mask.biases:
        visible = keep(mask, queries, keys, batch, heads, device)
        assert visible is not None
        return visible.any(dim=-1, keepdim=True)
    if mask.real is None and mask.query_ids is None:
        # Under causal, window and one set of ids a query always sees its own position.
        return None
    first, last = reach(mask, positions(queries, keys, device))
    start = torch.zeros((), dtype=torch.int64, device=device)
    low = start.expand(queries) if first is None else first.clamp(0, keys)
    high = (start + keys).expand(queries) if last is None else (last + 1).clamp(0, keys)
    ids = segment_ids(mask, queries)
    if ids is None:
        assert mask.real is not None
        seen = _any_within(mask.real, low[None], high[None])
    else:
        seen = _any_of_own(ids, mask.real, low, high)
    return seen[:, None, :, None]


def _any_within(real: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Whether real (B, S) holds anywhere from low to before high, (B, L): by a running count."""
    running = torch.nn.functional.pad(real.cumsum(dim=1), (1, 0))
    low, high = (edge.expand(real.shape[0], -1) for edge in (low, high))
    return running.gather(1, high) > running.gather(1, low)


def _any_of_own(
    ids: tuple[Tensor, Tensor], real: Tensor | None, low: Tensor, high: Tensor
) -> Tensor:
    """The same among keys of the query's own segment: sorted by it, they lie side by side."""
    queries, keys = (part.shape[1] for part in ids)
    ranks = _ranks(torch.cat(ids, dim=1))
    asks, has = ranks[:, :queries], ranks[:, queries:]
    place, order = (has * keys + torch.arange(keys, device=has.device)).sort(dim=1)
    real = torch.ones_like(has, dtype=torch.bool) if real is None else real.gather(1, order)
    edges = (torch.searchsorted(place, asks * keys + edge) for edge in (low, high))
    return _any_within(real, *edges)


def pick_rows(mask: Mask, index: Tensor, queries: int, keys: int) -> Mask:
    """The rows `index` (R,) of a mask over (L, S)."""
    if index.ndim != 1 or index.is_floating_point() or index.dtype == torch.bool:
        raise MaskError(
            checks.wanted("rows as an integer tensor (R,)", index, "use x.nonzero()[:, 0]")
        )
    mask.check(None, None, queries, keys)
    index = index.to(device_of(mask, index.device))
    position = index + (keys - queries)
    terms = _ordered(mask, position, keys)
    ids = segment_ids(mask, queries)
    if ids is not None:
        chosen = ids[0].index_select(1, index)
        terms.append((chosen[:, :, None] == ids[1][:, None, :])[:, None])

    def pick(values: Tensor) -> Tensor:
        return values if values.shape[-2] == 1 else values.index_select(-2, index)

    def moved(predicate: Predicate) -> Predicate:
        return lambda b, h, i, j: predicate(b, h, index[i], j)

    biases = [pick(values) for values in mask.biases]
    if mask.slopes is not None:
        biases.append(distances(mask.slopes, position, keys))
    return type(mask)(
        real=mask.real,
        kept=(
            *(pick(kept) for kept in mask.kept),
            *((reduce(torch.logical_and, terms),) if terms else ()),
        ),
        predicates=tuple(moved(predicate) for predicate in mask.predicates),
        biases=tuple(biases),
    )


def both_real(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    """Two paddings and-ed."""
    if first is None or second is None:
        return second if first is None else first
    checks.same_place("two paddings", first, second)
    return first & second


Segments = tuple[Tensor | None, Tensor | None, tuple[tuple[int, ...], ...] | None]


def both_segments(first: Mask, second: Mask) -> Segments:
    """Ids that are equal where the ids of both masks are equal."""
    if first.key_ids is None or second.key_ids is None:
        single = second if first.key_ids is None else first
        return single.query_ids, single.key_ids, single.document_lengths
    checks.same_place("the key ids of two segments parts", first.key_ids, second.key_ids)
    if first.query_ids is None and second.query_ids is None:
        return None, _pairs(first.key_ids, second.key_ids), None
    queries = next(m.query_ids.shape[1] for m in (first, second) if m.query_ids is not None)
    keys = first.key_ids.shape[1]
    if queries > keys and (first.query_ids is None or second.query_ids is None):
        raise MaskError(
            f"expected L <= S to combine one set of ids with two, got L={queries} and S={keys};"
            " give both parts two sets: Mask.segments(query_ids, key_ids)"
        )
    one, two = segment_ids(first, queries), segment_ids(second, queries)
    assert one is not None
    assert two is not None
    checks.same_place("the query ids of two segments parts", one[0], two[0])
    joint = _pairs(torch.cat(one, dim=1), torch.cat(two, dim=1))
    return joint[:, :queries], joint[:, queries:], None


def _pairs(first: Tensor, second: Tensor) -> Tensor:
    """Ids of pairs, (B, N): equal exactly where both are."""
    return _ranks(first) * first.shape[1] + _ranks(second)


def _ranks(ids: Tensor) -> Tensor:
    """The ids of each row renumbered from 0 to N - 1 at most, so that a pair fits an int64.

    By sorting: `unique` would have to read back how many there are.
    """
    ordered, order = ids.sort(dim=1)
    start = torch.zeros_like(ordered[:, :1], dtype=torch.int64)
    steps = torch.cat([start, (ordered[:, 1:] != ordered[:, :-1]).long()], dim=1)
    return torch.zeros_like(steps).scatter(1, order, steps.cumsum(dim=1))
