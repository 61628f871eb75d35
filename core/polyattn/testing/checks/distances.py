"""I. Positions that are distances, added to the logits by the mask; and how tokens are counted."""

from __future__ import annotations

import dataclasses
import functools

import torch
from torch import Tensor

from polyattn.errors import MaskError
from polyattn.layers.positions import Count
from polyattn.mask import Mask
from polyattn.testing.results import Mismatch, Seen, proves
from polyattn.testing.subjects.positions import HEADS, Counting, DistanceBias
from polyattn.testing.subjects.sequence import blaming
from polyattn.testing.tools.cases import normal
from polyattn.testing.tools.numerics import compare, compare_bits
from polyattn.testing.tools.raising import must_raise


@proves(
    "The slopes are the paper's for any number of heads, the first of them 2^(-8/n).",
    causes=(
        "an exponent that is off by one head",
        "heads that are no power of two given a sequence of their own, or one cut short",
    ),
    claim="recipe",
)
def check_alibi_slopes(subject: DistanceBias, heads: int) -> None:
    given = f"{heads} heads"
    bias = subject.bias(heads, 1, 2, given)
    slopes = bias[:, 0, 1] - bias[:, 0, 0]
    compare("the slopes", slopes, torch.tensor(_paper(heads)).double(), tolerance=1e-6, given=given)


def _paper(heads: int) -> list[float]:
    """As the paper's own code has it, by recursion."""
    if heads & (heads - 1) == 0:
        return [2.0 ** (-8.0 * (h + 1) / heads) for h in range(heads)]
    below = 1 << (heads.bit_length() - 1)
    return _paper(below) + _paper(2 * below)[0::2][: heads - below]


@proves(
    "Nothing is added at the query's own key, and less the further away a key is, in every head; "
    "no two heads decay alike.",
    causes=(
        "distances counted from the first key, or from the first query",
        "the sign of the slopes; a distance without abs()",
        "one slope for all heads",
    ),
)
def check_alibi_decreases(subject: DistanceBias, queries: int, keys: int) -> None:
    given = f"{HEADS} heads, L = {queries}, S = {keys}"
    bias = subject.bias(HEADS, queries, keys, given)
    for i in range(queries):
        own = i + keys - queries
        told = f"what query {i} adds at its own key {own}"
        compare(told, bias[:, i, own], torch.zeros(HEADS), tolerance=0.0, given=given)
        for near, far in [(j, j - 1) for j in range(own, 0, -1)] + [
            (j, j + 1) for j in range(own, keys - 1)
        ]:
            if not bool((bias[:, i, far] < bias[:, i, near]).all()):
                what = f"query {i} adds no less at key {far} than at key {near}"
                raise Mismatch(Seen(what=what, given=given))
    first = bias[:, -1, 0]
    if len(set(first.tolist())) < HEADS:
        raise Mismatch(Seen(what=f"heads decay alike: {first.tolist()}", given=given))


@proves(
    "What is added depends on the distance alone, so that a step of decoding adds what the whole "
    "sequence does.",
    causes=(
        "a bias built for the number of queries, not of keys",
        "a table kept from the first call",
        "a distance that is scaled by the length",
    ),
)
def check_alibi_is_relative(subject: DistanceBias) -> None:
    given = f"{HEADS} heads"
    whole = subject.bias(HEADS, 9, 9, given)
    for queries, keys in ((1, 9), (1, 5), (3, 5), (4, 9), (5, 5)):
        part = subject.bias(HEADS, queries, keys, given)
        told = f"{queries} queries over {keys} keys, against the same rows of the whole sequence"
        compare(told, part, whole[:, keys - queries : keys, :keys], tolerance=1e-12, given=given)
    distance = (torch.arange(9)[:, None] - torch.arange(9)).abs()
    by_distance = whole[:, 0, :][:, distance]
    compare("the bias, against that of the same distance", whole, by_distance, tolerance=1e-9)


@proves(
    "The slopes stay in float32 in modules of half precision, and are what they were.",
    causes=("a buffer that is cast with the module", "slopes that are trained by accident"),
)
def check_alibi_keeps_precision(subject: DistanceBias, dtype: torch.dtype) -> None:
    given = f"12 heads, a module of {dtype}"
    want = subject.bias(12, 3, 400, given)
    compare_bits("the bias", subject.bias(12, 3, 400, given, dtype=dtype), want, given=given)


@dataclasses.dataclass(frozen=True)
class _Tokens:
    """Which tokens of a batch are real, and their segments: (B, L), None where nothing is said."""

    keep: Tensor | None
    ids: Tensor | None
    length: int

    def mask(self, start: int, stop: int) -> Mask:
        mask = Mask.full()
        if self.keep is not None:
            mask = mask & Mask.padding(self.keep[:, start:stop])
        return mask if self.ids is None else mask & Mask.segments(self.ids[:, start:stop])

    def positions(self) -> Tensor:
        """(B, L), by counting: the earlier real tokens of a token's own segment."""
        batch = next((t.shape[0] for t in (self.keep, self.ids) if t is not None), 1)
        out = torch.zeros(batch, self.length, dtype=torch.long)
        for b in range(batch):
            seen: dict[int, int] = {}
            for i in range(self.length):
                segment = 0 if self.ids is None else int(self.ids[b, i])
                before = seen.get(segment, 0)
                real = self.keep is None or bool(self.keep[b, i])
                out[b, i] = before if real else max(before - 1, 0)
                seen[segment] = before + int(real)
        return out


def tokens(kind: str, seed: int) -> _Tokens:
    """``kind``: what is said of them: "plain", "padding", "documents", "segments", "both"."""
    length, batch = 9, 3
    keep = normal(batch, length, seed=seed) > -0.4 if kind in ("padding", "both") else None
    drawn = (normal(batch, length, seed=seed + 50) * 1.5).round().long()
    ids = drawn if kind in ("segments", "both") else None
    if kind == "documents":
        ids = drawn.clamp(0, 1).cumsum(1)
    return _Tokens(keep, ids, length)


def _counted(subject: Counting, given: _Tokens, cuts: tuple[int, ...], told: str) -> Tensor:
    """The positions of chunks that end at ``cuts``, as (B, L)."""
    want = given.positions()
    count, found, start = subject.start(), [], 0
    for stop in (*cuts, given.length):
        with blaming(told):
            mask = given.mask(start, stop)
            chunk, count = count.take(mask, stop - start, torch.device("cpu"))
        found.append(chunk.expand(want.shape[0], stop - start))
        if count.slots != stop:
            raise Mismatch(Seen(what=f"after {stop} tokens, slots is {count.slots}", given=told))
        start = stop
    return torch.cat(found, 1)


@proves(
    "A token's position is the number of real tokens before it in its own document: padding is "
    "not counted, documents begin at zero.",
    causes=(
        "positions taken from the slot",
        "padding on the left that is counted",
        "a document that goes on where the one before it ended",
    ),
)
def check_count_positions(subject: Counting, kind: str, seed: int) -> None:
    given = tokens(kind, seed)
    told = f"{kind}, seed {seed}, in one go"
    compare_bits("the positions", _counted(subject, given, (), told), given.positions(), given=told)


@proves(
    "In any number of chunks the count goes on as in one, whatever the chunks begin or end with.",
    causes=(
        "a count of slots where real tokens are meant",
        "a chunk that begins at zero again",
        "a segment that is forgotten with its chunk",
    ),
)
def check_count_continues(subject: Counting, kind: str, cuts: tuple[int, ...]) -> None:
    given = tokens(kind, 5)
    told = f"{kind}, chunks that end at {cuts}"
    compare_bits(
        "the positions", _counted(subject, given, cuts, told), given.positions(), given=told
    )


@proves(
    "A count is a value: taken from twice it says twice the same, and reorder moves its samples.",
    causes=(
        "a counter that is written to in place",
        "reorder() that forgets one of its tensors",
    ),
)
def check_count_is_a_value(subject: Counting, kind: str) -> None:
    given, place = tokens(kind, 7), torch.device("cpu")
    told = f"{kind}, the first 4 of 9 tokens"
    batch = given.positions().shape[0]
    with blaming(told):
        count = subject.start().take(given.mask(0, 4), 4, place)[1]
        before = count.slots, count.nbytes

        def following(count: Count, mask: Mask) -> Tensor:
            return count.take(mask, 5, place)[0].expand(batch, 5)

        first = following(count, given.mask(4, 9)).clone()
        following(count, given.mask(4, 9))
        again = following(count, given.mask(4, 9))
        index = torch.tensor([2, 0, 0])[:batch] % batch
        moved = _Tokens(
            None if given.keep is None else given.keep[index],
            None if given.ids is None else given.ids[index],
            given.length,
        )
        picked = following(count.reorder(index), moved.mask(4, 9))
    compare_bits("the positions after the same count, again", again, first, given=told)
    compare_bits("the positions after reorder", picked, first[index], given=told)
    if (count.slots, count.nbytes) != before:
        raise Mismatch(Seen(what="the count was changed by what was taken from it", given=told))


@proves(
    "Segments are given for every chunk or for none: else what belongs together is not said, and "
    "it raises.",
    causes=("a chunk without segments that is taken for one document",),
)
def check_count_refuses_half_said_segments(subject: Counting) -> None:
    place = torch.device("cpu")
    said, unsaid = Mask.segments(torch.tensor([[0, 1]])), Mask.full()
    for first, second in ((unsaid, said), (said, unsaid)):
        with blaming(first.text):
            count = subject.start().take(first, 2, place)[1]
        must_raise(
            functools.partial(count.take, second, 2, place),
            MaskError,
            asked="a chunk that says nothing of its segments where another does",
            expected="MaskError",
            given=f"{first.text}, then {second.text}",
        )
