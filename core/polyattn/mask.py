"""Who may attend to whom: one value, a conjunction of parts, each with one meaning.

True = may attend, in every part and every dense form. The queries are the last L of the
S positions: query i sits at position i + S - L, so with L = S both count from the same start.

Letters: B batch, H heads, L queries, S keys. In the drawings a row is a query, a column is
a key, `#` may attend and `.` may not.

The value is here; `_mask_checks` says what a part may look like, `_mask_dense` lowers a mask
to tensors, `_mask_drawing` draws it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.utils._pytree import register_pytree_node

from polyattn import _mask_checks as checks
from polyattn import _mask_dense as dense
from polyattn import _mask_drawing as drawing
from polyattn import _mask_tree as tree
from polyattn.errors import MaskError, closest

__all__ = ["Mask", "Predicate", "alibi_slopes", "as_mask"]

Predicate = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

_FIELDS = {
    "causal": ("prefix",),
    "window": ("span",),
    "padding": ("real",),
    "segments": ("query_ids", "key_ids", "document_lengths"),
    "dense": ("kept", "predicates"),
    "bias": ("biases",),
    "alibi": ("slopes",),
}


@dataclass(frozen=True, eq=False, repr=False)
class Mask:
    """A conjunction of parts. Made by the constructors below, combined with `&`.

    The fields are for implementations that lower a mask themselves; they are not validated
    again, so build masks with the constructors.

    >>> Mask.causal() & Mask.window(2, 0)
    Mask.causal() & Mask.window(2, 0)
      #.......
      ##......
      ###.....
      .###....
      ..###...
      ...###..
      ....###.
      .....###
    """

    prefix: int | None = None
    """Not None: causal, and the first `prefix` keys are visible to every query."""
    span: tuple[int | None, int | None] | None = None
    """Not None: a window of (left, right) keys; a side that is None has no limit."""
    real: Tensor | None = None
    """Padding: bool (B, S), True = a real key."""
    query_ids: Tensor | None = None
    """Segment of each query, (B, L). None beside `key_ids`: the queries are its last L."""
    key_ids: Tensor | None = None
    """Segment of each key, (B, S). Not None: there is a segments part."""
    document_lengths: tuple[tuple[int, ...], ...] | None = None
    """What `documents` was given, on the host: a hint beside `key_ids`, which decide."""
    kept: tuple[Tensor, ...] = ()
    """Dense: bool (L, S) or (B, H, L, S), each size may be 1."""
    predicates: tuple[Predicate, ...] = ()
    """Dense too: functions of the indices (b, h, i, j)."""
    biases: tuple[Tensor, ...] = ()
    """Added to the logits: floating (L, S) or (B, H, L, S), each size may be 1."""
    slopes: Tensor | None = None
    """Alibi: floating (H,)."""

    # Constructors

    @classmethod
    def full(cls) -> Mask:
        """No part at all: every query may attend to every key."""
        return cls()

    @classmethod
    def causal(cls, prefix: int = 0) -> Mask:
        """Key j is visible to query i when j <= i + S - L; the first `prefix` keys to all.

        >>> print(Mask.causal().draw(3, 5))
        ###..
        ####.
        #####
        >>> print(Mask.causal(prefix=2).draw(4, 4))
        ##..
        ##..
        ###.
        ####
        """
        return cls(prefix=checks.count("prefix", prefix))

    @classmethod
    def window(cls, left: int | None, right: int | None) -> Mask:
        """At most `left` keys before and `right` keys after the query's own position.

        None on a side sets no limit there. W keys that end at the query's own are
        `window(W - 1, 0)`.

        >>> print(Mask.window(1, 2).draw(4, 6))
        .####.
        ..####
        ...###
        ....##
        """
        return cls(span=checks.span(left, right))

    @classmethod
    def padding(cls, keep: Tensor) -> Mask:
        """Keys that are real: bool (B, S), True = real.

        >>> print(Mask.padding(torch.tensor([[True, True, False]])).draw(3, 3))
        ##.
        ##.
        ##.
        """
        return cls(real=checks.padding(keep))

    @classmethod
    def lengths(
        cls,
        lengths: Sequence[int],
        total: int | None = None,
        *,
        device: torch.device | str | None = None,
    ) -> Mask:
        """Padding at the right: of sample b, the first `lengths[b]` of `total` keys are real.

        `total` is the longest length where it is not given. The lengths are host integers.

        >>> Mask.lengths([2, 4]).real.int()
        tensor([[1, 1, 0, 0],
                [1, 1, 1, 1]], dtype=torch.int32)
        """
        lengths, total = checks.lengths(lengths, total)
        slots = torch.arange(total, device=device)
        return cls(real=slots < torch.tensor(lengths, device=device)[:, None])

    @classmethod
    def segments(cls, query_ids: Tensor, key_ids: Tensor | None = None) -> Mask:
        """Packed sequences: a query sees the keys whose id equals its own. Integers (B, S).

        One set of ids names all S positions, and the queries are the last L of them. Two sets
        name the L queries, (B, L), and the S keys, (B, S), of unrelated sequences.

        >>> print(Mask.segments(torch.tensor([[0, 0, 1, 1, 0]])).draw(5, 5))
        ##..#
        ##..#
        ..##.
        ..##.
        ##..#
        """
        if key_ids is None:
            return cls(key_ids=checks.segments("ids", query_ids))
        checks.segments("query_ids", query_ids)
        checks.segments("key_ids", key_ids)
        checks.same_place("query_ids and key_ids", query_ids[:, :0], key_ids[:, :0])
        return cls(query_ids=query_ids, key_ids=key_ids)

    @classmethod
    def documents(
        cls,
        lengths: Sequence[int] | Sequence[Sequence[int]],
        *,
        device: torch.device | str | None = None,
    ) -> Mask:
        """Segments that lie one after the other: the lengths of each sample's documents.

        A flat list is a batch of one. The lengths stay on the host in `document_lengths`,
        for kernels that would have to synchronise to read them from the ids.

        >>> print(Mask.documents([2, 3]).draw(5, 5))
        ##...
        ##...
        ..###
        ..###
        ..###
        """
        rows = checks.documents(lengths)
        ids = [[d for d, length in enumerate(row) for _ in range(length)] for row in rows]
        return cls(key_ids=torch.tensor(ids, device=device), document_lengths=rows)

    @classmethod
    def dense(cls, keep: Tensor) -> Mask:
        """Any pattern: bool (L, S), or (B, H, L, S) where each size may be 1.

        >>> print(Mask.dense(torch.tensor([[True, False], [False, True]])).draw(2, 2))
        #.
        .#
        """
        return cls(kept=(checks.dense(keep),))

    @classmethod
    def where(cls, predicate: Predicate) -> Mask:
        """Any pattern, as a vectorised function of the indices (b, h, i, j).

        They are integer tensors that broadcast to (B, H, L, S): sample, head, query from 0 to
        L - 1, key from 0 to S - 1. The result is bool and broadcasts to the same.

        >>> print(Mask.where(lambda b, h, i, j: (i + j) % 2 == 0).draw(2, 4))
        #.#.
        .#.#
        """
        if not callable(predicate):
            raise MaskError(checks.wanted("a function of (b, h, i, j)", predicate, "Mask.where"))
        return cls(predicates=(predicate,))

    @classmethod
    def bias(cls, values: Tensor) -> Mask:
        """Added to the logits, differentiable: floating (L, S), or (B, H, L, S), sizes may be 1.

        `-inf` closes; `finfo.min` is a number like any other; NaN comes through.

        >>> print(Mask.bias(torch.tensor([[0.5, -torch.inf], [0.0, -2.0]])).draw(2, 2))
        #.
        ##
        """
        return cls(biases=(checks.bias(values),))

    @classmethod
    def alibi(cls, slopes: Tensor) -> Mask:
        """Adds -slope x distance to the logits, one slope for each head: floating (H,).

        The distance is between the query's position and the key's, on either side. Closes
        nothing. `alibi_slopes(heads)` are the paper's. Press et al., arXiv 2108.12409.
        """
        return cls(slopes=checks.slopes(slopes))

    # Algebra

    def __and__(self, other: object) -> Mask:
        """Both masks at once: a key is visible where both say so, biases are added.

        The smaller prefix, the narrower window on each side, paddings and-ed. Segments: the
        ids of both must be equal, and the result has ids of its own (and no document lengths).
        Dense and bias parts are kept side by side. Two alibi parts are an error.

        >>> Mask.window(5, 1) & Mask.causal(prefix=3) & Mask.window(None, 0) & Mask.causal()
        ... # doctest: +ELLIPSIS
        Mask.causal() & Mask.window(5, 0)
        ...
        """
        if not isinstance(other, Mask):
            if isinstance(other, Tensor):
                as_mask(other)
            return NotImplemented
        if self.slopes is not None and other.slopes is not None:
            raise MaskError(
                "one alibi part at most, got two; add the slopes: Mask.alibi(first + second)"
            )
        query_ids, key_ids, documents = dense.both_segments(self, other)
        return Mask(
            prefix=_smaller(self.prefix, other.prefix),
            span=_narrower(self.span, other.span),
            real=dense.both_real(self.real, other.real),
            query_ids=query_ids,
            key_ids=key_ids,
            document_lengths=documents,
            kept=self.kept + other.kept,
            predicates=self.predicates + other.predicates,
            biases=self.biases + other.biases,
            slopes=other.slopes if self.slopes is None else self.slopes,
        )

    def __rand__(self, other: object) -> Mask:
        return self & other

    def only(self, *parts: str) -> Mask:
        """The same mask with these parts and no others."""
        names = [field for part in parts for field in _fields_of(part)]
        return Mask(**{name: getattr(self, name) for name in names})

    def without(self, *parts: str) -> Mask:
        """The same mask with these parts left out."""
        gone = [field for part in parts for field in _fields_of(part)]
        names = [name for fields in _FIELDS.values() for name in fields if name not in gone]
        return Mask(**{name: getattr(self, name) for name in names})

    def rows(self, index: Tensor, queries: int, keys: int) -> Mask:
        """The mask of some query rows: integers (R,) from 0 to `queries` - 1, against all keys.

        Causal, window and segments become one dense part, alibi a bias; padding stays.
        """
        return dense.pick_rows(self, index, queries, keys)

    def to(self, device: torch.device | str) -> Mask:
        """The same mask with its tensors on `device`."""

        def move(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return tuple(tensor.to(device) for tensor in tensors)

        return replace(
            self,
            real=None if self.real is None else self.real.to(device),
            query_ids=None if self.query_ids is None else self.query_ids.to(device),
            key_ids=None if self.key_ids is None else self.key_ids.to(device),
            slopes=None if self.slopes is None else self.slopes.to(device),
            kept=move(self.kept),
            biases=move(self.biases),
        )

    # What it is made of

    @property
    def parts(self) -> frozenset[str]:
        """The names of the parts, which an implementation must be able to take."""
        held = []
        if self.prefix is not None:
            held.append("causal")
        if self.span is not None:
            held.append("window")
        if self.real is not None:
            held.append("padding")
        if self.key_ids is not None:
            held.append("segments")
        if self.kept or self.predicates:
            held.append("dense")
        if self.biases:
            held.append("bias")
        if self.slopes is not None:
            held.append("alibi")
        return frozenset(held)

    @property
    def is_full(self) -> bool:
        """True where no part is held."""
        # Spelt out, since every call asks: a property within a property is felt.
        return (
            self.prefix is None
            and self.span is None
            and self.real is None
            and self.key_ids is None
            and self.slopes is None
            and not self.kept
            and not self.predicates
            and not self.biases
        )

    @property
    def signature(self) -> tuple[object, ...]:
        """Hashable: all of the mask that is not a length, for caches of checked calls."""
        if not self._holds_more:
            return (self.prefix, self.span)
        return (self.prefix, self.span, *tree.tensor_signature(self))

    @property
    def _holds_more(self) -> bool:
        """True where there is more than causal and window, which are two integers each."""
        return bool(
            self.real is not None
            or self.key_ids is not None
            or self.kept
            or self.predicates
            or self.biases
            or self.slopes is not None
        )

    # Lowering

    def check(
        self,
        batch: int | None,
        heads: int | None,
        queries: int,
        keys: int,
        device: torch.device | str | None = None,
    ) -> None:
        """Raise `MaskError` where this mask cannot belong to a call of these sizes.

        Compares every shape, reads no values. A size or device that is None is not judged.
        """
        ordered = (
            self.prefix is not None
            or self.span is not None
            or self.slopes is not None
            or (self.key_ids is not None and self.query_ids is None)
        )
        if ordered and queries > keys:
            raise MaskError(
                f"expected L <= S, as the queries are the last L of S positions under {self.text},"
                f" got L={queries} and S={keys}; masks of unrelated sequences have neither order"
                " nor distance, and two sets of ids: Mask.segments(query_ids, key_ids)"
            )
        if self._holds_more:
            checks.shapes(self, batch, heads, queries, keys, device)

    def keep(
        self,
        queries: int,
        keys: int,
        batch: int | None = None,
        heads: int | None = None,
        device: torch.device | str | None = None,
    ) -> Tensor | None:
        """The dense form: bool, 4-D, broadcasts to (B, H, L, S); None if nothing is closed.

        Holds the `-inf` entries of biases. `Mask.where` needs `batch` and `heads`.
        """
        self.check(batch, heads, queries, keys, device)
        return dense.keep(self, queries, keys, batch, heads, device)

    def logit_bias(
        self,
        queries: int,
        keys: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> Tensor | None:
        """The sum of biases and alibi: 4-D, broadcasts to (B, H, L, S); None without them.

        What `keep` closes by a boolean is not in it. `-inf` stays, and a finite number stays
        finite in a narrower dtype.
        """
        self.check(None, None, queries, keys, device)
        return dense.logit_bias(self, queries, keys, dtype, device)

    def visible_rows(
        self,
        queries: int,
        keys: int,
        batch: int | None = None,
        heads: int | None = None,
        device: torch.device | str | None = None,
    ) -> Tensor | None:
        """Queries that see a key: bool, broadcasts to (B, H, L, 1); None if all do for sure.

        Builds nothing of (L, S) but for dense and bias parts, which are that already.
        """
        self.check(batch, heads, queries, keys, device)
        return dense.visible_rows(self, queries, keys, batch, heads, device)

    def segment_ids(self, queries: int) -> tuple[Tensor, Tensor] | None:
        """The ids of the queries, (B, L), and of the keys, (B, S); None without segments."""
        return dense.segment_ids(self, queries)

    # For people

    @property
    def text(self) -> str:
        """One line: the parts as they would be written."""
        return drawing.text(self)

    def draw(self, queries: int, keys: int, sample: int = 0, head: int = 0) -> str:
        """The little matrix of one sample and head: `#` may attend, `.` may not."""
        return drawing.draw(self, queries, keys, sample, head)

    def __repr__(self) -> str:
        return drawing.representation(self)


def as_mask(mask: object) -> Mask:
    """A `Mask` as it is, None as the full mask; for all else, say which constructor was meant.

    Nothing is guessed from a raw tensor: in PyTorch alone, True means "may attend" to one
    function and "may not" to another.
    """
    if isinstance(mask, Mask):
        return mask
    if mask is None:
        return Mask()
    raise MaskError(checks.meant(mask))


def alibi_slopes(heads: int) -> Tensor:
    """The slopes of the paper, float32 (H,): a geometric sequence that starts at 2**(-8/H).

    Where H is no power of two: those of the next smaller one, then every second one of its
    double. Press et al., arXiv 2108.12409.

    >>> alibi_slopes(2).tolist()
    [0.0625, 0.00390625]
    """
    checks.count("heads", heads)
    whole = 1 << (heads.bit_length() - 1) if heads else 0
    slopes = [2.0 ** (-8.0 * (n + 1) / whole) for n in range(whole)]
    slopes += [2.0 ** (-4.0 * (2 * n + 1) / whole) for n in range(heads - whole)]
    return torch.tensor(slopes)


def _fields_of(part: str) -> tuple[str, ...]:
    if part not in _FIELDS:
        near = closest(part, _FIELDS)
        hint = f"; did you mean {near!r}?" if near else ""
        raise MaskError(f"expected parts out of {', '.join(_FIELDS)}, got {part!r}{hint}")
    return _FIELDS[part]


def _smaller(first: int | None, second: int | None) -> int | None:
    if first is None or second is None:
        return second if first is None else first
    return min(first, second)


def _narrower(
    first: tuple[int | None, int | None] | None, second: tuple[int | None, int | None] | None
) -> tuple[int | None, int | None] | None:
    if first is None or second is None:
        return second if first is None else first
    return _smaller(first[0], second[0]), _smaller(first[1], second[1])


register_pytree_node(
    Mask,
    tree.flatten,
    lambda tensors, context: Mask(**tree.fields(tensors, context)),
    serialized_type_name="polyattn.Mask",
    to_dumpable_context=tree.to_json,
    from_dumpable_context=tree.from_json,
    flatten_with_keys_fn=tree.flatten_with_keys,
)
