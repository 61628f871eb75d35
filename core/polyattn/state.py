"""Decoding states: what a variant remembers between two steps.

A state is a value. Extending it gives a new one and leaves the old one as it was, so one state may
be extended twice (beams, forks), reordered, or kept for a second turn.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor
from torch.compiler import is_compiling

from polyattn._mask_checks import got
from polyattn.capabilities import Sizes
from polyattn.errors import ConfigError, MaskError, ShapeError
from polyattn.mask import Mask

_CAUSAL = Mask.causal()
_SLOTS = 4096  # positions of a buffer for each of which a view is worth keeping


def tracks(*tensors: Tensor) -> bool:
    """Will gradients flow through any of these?"""
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)


@dataclass(frozen=True)
class Origin:
    """What a state was made for: whose it is, and what its tokens look like.

    owner: the variant's name and config, as text. sizes: where they were given.
    """

    owner: str
    batch: int
    sizes: Sizes | None
    dtype: torch.dtype
    device: str


class State(ABC):
    """``length``: tokens seen, padding included. ``nbytes``: memory held.

    ``origin``: what it was made for, as ``new_state`` notes it; carried from state to state.
    What is added up over tokens is kept in ``kit.accumulation_dtype(dtype)``: a sum in a half type
    swallows the tokens that come late. Keys and values may stay as they came.
    """

    length: int
    origin: Origin | None = None

    @property
    @abstractmethod
    def nbytes(self) -> int: ...

    @abstractmethod
    def reorder(self, index: Tensor) -> Self:
        """The state whose sample ``b`` is this state's sample ``index[b]``; index: (B',)."""

    def recordable(self) -> Self:
        """The same state, which gradients may flow through: no tensor of inference mode in it."""
        return self

    def made_for(self, origin: Origin) -> Self:
        """The same state, with its origin noted."""
        noted = copy.copy(self)
        object.__setattr__(noted, "origin", origin)
        return noted

    def check(self, owner: str, q: Tensor, k: Tensor, v: Tensor) -> None:
        """May new tokens q (B, H, L, D), k, v (B, Hkv, L, ...) of this variant continue it?

        Half types and float32 share their sums, so they may take turns.
        Raises: ConfigError for another variant's state; ShapeError for other tokens.
        """
        made = self.origin
        if made is None:
            return
        if made.owner != owner:
            raise ConfigError(
                f"extend: the state was made by {made.owner}, expected one that {owner} made with "
                "new_state"
            )
        sizes = made.sizes
        if (
            made.batch != q.shape[0]
            or (made.dtype is torch.float64) != (q.dtype is torch.float64)
            or made.device != q.device.type
            or (
                sizes is not None
                and (sizes.heads, sizes.head_dim, sizes.kv_heads, sizes.value_dim)
                != (q.shape[1], q.shape[3], k.shape[1], v.shape[3])
            )
        ):
            told = f"batch {made.batch}, {sizes or 'any sizes'}, {made.dtype} on {made.device}"
            raise ShapeError(
                f"extend: the state was made for {told}, got q {tuple(q.shape)}, k "
                f"{tuple(k.shape)}, v {tuple(v.shape)}, {q.dtype} on {q.device.type}; new_state "
                "starts afresh"
            )


def check_index(index: object, batch: int | None = None) -> None:
    """Raise ShapeError unless ``index`` is an integer tensor (B',), below ``batch`` where given."""
    if (
        not isinstance(index, Tensor)
        or index.ndim != 1
        or index.dtype not in (torch.int64, torch.int32)
    ):
        raise ShapeError(
            f"reorder: expected an integer tensor (B',), the old sample of each new one, got "
            f"{got(index)}; such as torch.tensor([0, 0, 1])"
        )
    if batch is not None and index.numel():
        least, most = int(index.min()), int(index.max())
        if least < 0 or most >= batch:
            wrong = least if least < 0 else most
            raise ShapeError(
                f"reorder: expected samples from 0 to {batch - 1}, got {wrong}; the state holds "
                "no other"
            )


def pick_samples(x: Tensor, index: Tensor) -> Tensor:
    """The samples ``index`` (B',) of x (B, ...). Raises: ShapeError, naming what is wrong."""
    check_index(index)
    try:
        return x.index_select(0, index)
    except (IndexError, RuntimeError):
        # Read only now: on a device it would be waited for.
        check_index(index, x.shape[0])
        if index.device != x.device:
            raise ShapeError(
                f"reorder: expected an index on {x.device}, where the state is, got one on "
                f"{index.device}; use index.to({str(x.device)!r})"
            ) from None
        raise


def _reordered(origin: Origin | None, index: Tensor) -> Origin | None:
    return None if origin is None else replace(origin, batch=index.shape[0])


@dataclass(frozen=True, eq=False)
class RecurrentState(State):
    """A fixed set of tensors, each (B, ...), whose size does not depend on the length.

    Sums among them are kept in ``kit.accumulation_dtype(dtype)``, whatever the dtype of the tokens.
    """

    length: int
    tensors: Mapping[str, Tensor]
    origin: Origin | None = field(default=None, repr=False)

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in self.tensors.values())

    def reorder(self, index: Tensor) -> Self:
        moved = {name: pick_samples(t, index) for name, t in self.tensors.items()}
        return replace(self, tensors=moved, origin=_reordered(self.origin, index))

    def recordable(self) -> Self:
        if is_compiling() or not any(t.is_inference() for t in self.tensors.values()):
            return self
        return replace(self, tensors={name: t.clone() for name, t in self.tensors.items()})

    def advance(self, tokens: int, tensors: Mapping[str, Tensor]) -> Self:
        """The state after ``tokens`` more, with these tensors in the place of the old."""
        return type(self)(self.length + tokens, tensors, self.origin)


def _kept_from_writing(x: Tensor) -> bool:
    """A tensor made under inference mode may not be written to outside of it."""
    return x.is_inference() and not torch.is_inference_mode_enabled()


@dataclass(eq=False)
class _Buffer:
    """Key-like tensors with room at their end, shared by the states that grew from one another.

    ``tip`` holds the one position that may be written next. Taking it out of the list is atomic,
    so of two states (or threads) that extend the same prefix one writes on and the other copies.
    """

    tensors: dict[str, Tensor]
    tip: list[int]

    capacity: int = field(init=False)
    _slots: dict[str, tuple[Tensor, ...]] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.capacity = next(iter(self.tensors.values())).shape[2]

    def _slot_views(self) -> dict[str, tuple[Tensor, ...]]:
        """A view of each position, made all at once: one at a time costs more than the copy."""
        if self._slots is None:
            self._slots = {name: torch.split(x, 1, dim=2) for name, x in self.tensors.items()}
        return self._slots

    @property
    def nbytes(self) -> int:
        return sum(t.untyped_storage().nbytes() for t in self.tensors.values())

    def claim(self, position: int, tokens: int) -> bool:
        """Is there room for these tokens at this position, and nobody else writing there?"""
        if position + tokens > self.capacity:
            return False
        if not is_compiling() and _kept_from_writing(next(iter(self.tensors.values()))):
            return False
        try:
            self.tip.remove(position)
        except ValueError:
            return False
        self.tip.append(position + tokens)
        return True

    def write(self, new: Mapping[str, Tensor], position: int, tokens: int) -> None:
        if tokens == 1 and self.capacity <= _SLOTS and not is_compiling():
            for name, slots in self._slot_views().items():
                slots[position].copy_(new[name])
            return
        for name, tensor in self.tensors.items():
            tensor.narrow(2, position, tokens).copy_(new[name])

    def view(self, start: int, stop: int) -> dict[str, Tensor]:
        return {name: t.narrow(2, start, stop - start) for name, t in self.tensors.items()}


@dataclass(frozen=True, eq=False)
class KeyValueState(State):
    """All keys and values seen (or the last ``reach`` of them), in a buffer that grows.

    reach: how many past keys a later query can still see; None means all.
    Which keys are real, and their segment ids, are remembered with them.
    """

    length: int = 0
    reach: int | None = None
    _buffer: _Buffer | None = field(default=None, repr=False)
    _span: tuple[int, int] = (0, 0)
    _real: Tensor | None = field(default=None, repr=False)
    _ids: Tensor | None = field(default=None, repr=False)
    origin: Origin | None = field(default=None, repr=False)

    @property
    def nbytes(self) -> int:
        small = sum(t.nbytes for t in (self._real, self._ids) if t is not None)
        return small + (self._buffer.nbytes if self._buffer else 0)

    @property
    def held(self) -> int:
        """How many keys are held now."""
        return self._span[1] - self._span[0]

    def reorder(self, index: Tensor) -> Self:
        def pick(t: Tensor | None) -> Tensor | None:
            return None if t is None else pick_samples(t, index)

        if self._buffer is None:
            check_index(index)
            if self.origin is not None and index.device.type == "cpu" and not is_compiling():
                check_index(index, self.origin.batch)
            return replace(self, origin=_reordered(self.origin, index))
        tensors = {n: pick_samples(t, index) for n, t in self._buffer.view(*self._span).items()}
        return replace(
            self,
            _buffer=_Buffer(tensors, [self.held]),
            _span=(0, self.held),
            _real=pick(self._real),
            _ids=pick(self._ids),
            origin=_reordered(self.origin, index),
        )

    def append(
        self, new: Mapping[str, Tensor], mask: Mask, queries: Tensor
    ) -> tuple[dict[str, Tensor], Mask, Self]:
        """Add tokens. new: key-like tensors (B, H, tokens, width). mask: of the new tokens.

        queries: of the new tokens; with gradients on, what they see is never written to again.
        Returns: the tensors over all keys still visible, the mask over them (causal added), and
        the state afterwards. Raises: ShapeError where the new tokens do not fit the old.
        """
        tokens = next(iter(new.values())).shape[2]
        graph = False
        if torch.is_grad_enabled():
            slopes = () if mask.slopes is None else (mask.slopes,)
            graph = tracks(queries, *new.values(), *slopes, *self._tensors())
        buffer, start, stop = self._with_room(new, tokens, graph)
        held = buffer.view(start, stop)
        real = ids = None
        if not mask.is_full or self._real is not None or self._ids is not None:
            real = _padding_of_all(self._real, mask.real, self.held, tokens)
            ids = self._ids_of_all(mask.key_ids)
            over_all = Mask(prefix=0, span=mask.span, real=real, key_ids=ids, slopes=mask.slopes)
        else:
            over_all = _CAUSAL
        if self.reach is not None and stop - start > self.reach:
            buffer, start, stop, real, ids = self._trimmed(buffer, start, stop, real, ids)
        cls, length = type(self), self.length + tokens
        state = cls(length, self.reach, buffer, (start, stop), real, ids, self.origin)
        return held, over_all, state

    def _with_room(
        self, new: Mapping[str, Tensor], tokens: int, graph: bool
    ) -> tuple[_Buffer, int, int]:
        """A buffer that holds the old and the new tokens, and the span they lie in."""
        buffer, (start, stop) = self._buffer, self._span
        if buffer is not None:
            _check_fit(buffer, new)
        if graph:
            whole = dict(new)
            if buffer is not None:
                old = buffer.view(start, stop)
                whole = {name: torch.cat([old[name], new[name]], dim=2) for name in new}
            return _Buffer(whole, [stop - start + tokens]), 0, stop - start + tokens
        if buffer is None or not buffer.claim(stop, tokens):
            buffer, start, stop = self._moved(new, tokens), 0, self.held
        buffer.write(new, stop, tokens)
        return buffer, start, stop + tokens

    def _tensors(self) -> Iterable[Tensor]:
        return self._buffer.tensors.values() if self._buffer else ()

    def _moved(self, new: Mapping[str, Tensor], tokens: int) -> _Buffer:
        """A buffer with room to double, holding what this state still sees."""
        needed = self.held + tokens
        capacity = max(2 * needed, 16)
        if self.reach is not None:
            capacity = max(min(capacity, 2 * self.reach), needed)
        tensors = {n: t.new_empty((*t.shape[:2], capacity, t.shape[3])) for n, t in new.items()}
        moved = _Buffer(tensors, [needed])
        if self._buffer is not None and self.held:
            moved.write(self._buffer.view(*self._span), 0, self.held)
        return moved

    def _trimmed(
        self, buffer: _Buffer, start: int, stop: int, real: Tensor | None, ids: Tensor | None
    ) -> tuple[_Buffer, int, int, Tensor | None, Tensor | None]:
        """Forget what no later query can see; give back a buffer beyond twice the reach."""
        assert self.reach is not None
        drop = stop - start - self.reach
        start += drop
        real = None if real is None else real[:, drop:]
        ids = None if ids is None else ids[:, drop:]
        if buffer.capacity <= 2 * max(self.reach, 1):
            return buffer, start, stop, real, ids
        slim = {name: t.clone() for name, t in buffer.view(start, stop).items()}
        return _Buffer(slim, [self.reach]), 0, self.reach, real, ids

    def _ids_of_all(self, new: Tensor | None) -> Tensor | None:
        if self.held == 0:
            return new
        if (self._ids is None) != (new is None):
            has, lacks = ("state", "new tokens") if new is None else ("new tokens", "state")
            raise MaskError(
                f"extend: the {has} have segments and the {lacks} have none, so which of them "
                "belong together is not said; give Mask.segments(ids) with every chunk"
            )
        return None if self._ids is None or new is None else torch.cat([self._ids, new], dim=1)


def _check_fit(buffer: _Buffer, new: Mapping[str, Tensor]) -> None:
    """Raise ShapeError unless the new tokens are like the old in all but their number."""
    for name, held in buffer.tensors.items():
        batch, heads, _, width = held.shape
        came_batch, came_heads, _, came_width = new[name].shape
        if (
            batch == came_batch
            and heads == came_heads
            and width == came_width
            and held.dtype is new[name].dtype
            and held.device == new[name].device
        ):
            continue
        came = new[name]
        raise ShapeError(
            f"extend: {name} is {tuple(came.shape)} {came.dtype} on {came.device}, but the state "
            f"holds {tuple(held.shape)} {held.dtype} on {held.device}; batch, heads, width, dtype "
            "and device must stay those of the first chunk (new_state starts afresh)"
        )


def _padding_of_all(
    old: Tensor | None, new: Tensor | None, held: int, tokens: int
) -> Tensor | None:
    """Which of all keys are real; a side that says nothing has real keys only."""
    if old is None and new is None:
        return None
    if old is None:
        assert new is not None
        old = new.new_ones((new.shape[0], held))
    if new is None:
        new = old.new_ones((old.shape[0], tokens))
    return torch.cat([old, new], dim=1)
