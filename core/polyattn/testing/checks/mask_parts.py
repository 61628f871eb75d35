"""D. Masks themselves: each part means what it says, together they mean all of it."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from polyattn.errors import MaskError
from polyattn.mask import Mask
from polyattn.testing.results import Mismatch, Seen, proves
from polyattn.testing.subjects.mask_meanings import (
    BATCH,
    HEADS,
    KINDS,
    MaskSubject,
    Meaning,
    drawn,
    meant_bias,
    meant_keep,
)
from polyattn.testing.subjects.sequence import blaming
from polyattn.testing.tools.cases import normal
from polyattn.testing.tools.numerics import compare

LENGTHS = ((1, 1), (5, 5), (3, 7), (1, 6), (4, 9), (6, 2))
"""(L, S); the last for parts that count no positions."""


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


def _same_bias(what: str, got: Tensor, want: Tensor, given: str) -> None:
    """Both -inf at the same places, and equal numbers elsewhere."""
    shut = want == -torch.inf
    same_keep(f"{what}: an entry of -inf", got != -torch.inf, ~shut, given)
    finite = (x.masked_fill(shut, 0.0) for x in (got, want))
    compare(what, *finite, tolerance=1e-6, given=given)


@proves(
    "A part lets see, and adds, what it says, asked query by query and key by key: the dense form, "
    "the rows that see a key, and what is added to the logits.",
    causes=(
        "queries aligned with the first keys in place of the last",
        "an edge that is off by one: < for <=",
        "True read as hidden",
        "the prefix, or one side of the window, left out",
    ),
)
def check_mask_means_what_it_says(
    subject: MaskSubject, kind: str, queries: int, keys: int, seed: int
) -> None:
    meaning = KINDS[kind](queries, keys, seed)
    given = f"{meaning.text}, L = {queries}, S = {keys}"
    with blaming(given):
        mask = meaning.make(subject.masks)
    _is_meant(mask, [meaning], queries, keys, given)


def _is_meant(mask: Mask, meanings: list[Meaning], queries: int, keys: int, given: str) -> None:
    want = meant_keep(meanings, queries, keys)
    same_keep("the dense form", keep_of(mask, queries, keys, given), want, given)
    with blaming(given):
        rows = mask.visible_rows(queries, keys, BATCH, HEADS)
    if rows is None:
        rows = torch.ones(1, 1, 1, 1, dtype=torch.bool)
    seen = want.any(-1, keepdim=True)
    same_keep("the rows that see a key", rows.expand(seen.shape), seen, given)
    got, added = bias_of(mask, queries, keys, given), meant_bias(meanings, queries, keys)
    _same_bias("what is added", got, added, given)


@proves(
    "& is both at once: it closes what either closes and adds what both add, in any order and "
    "grouping; twice the same closes nothing more, and the full mask changes nothing.",
    causes=(
        "one part that is taken in the place of the other",
        "the wider window or the larger prefix kept",
        "a part of the second mask forgotten",
    ),
)
def check_mask_conjunction(subject: MaskSubject, queries: int, keys: int, seed: int) -> None:
    meanings = drawn(seed, queries, keys)
    told = " & ".join(m.text for m in meanings)
    given = f"{told}, L = {queries}, S = {keys}, seed {seed}"
    with blaming(given):
        masks = [m.make(subject.masks) for m in meanings]
        joined = _joined(masks)
        others = {
            "the parts in reverse": _joined(masks[::-1]),
            "grouped from the right": _from_the_right(masks),
            "& the full mask": joined & subject.masks.full(),
            "the full mask &": subject.masks.full() & joined,
        }
    _is_meant(joined, meanings, queries, keys, given)
    keep, bias = keep_of(joined, queries, keys, given), bias_of(joined, queries, keys, given)
    for name, other in others.items():
        same_keep(name, keep_of(other, queries, keys, given), keep, given)
        _same_bias(name, bias_of(other, queries, keys, given), bias, given)
        if other.parts != joined.parts:
            what = f"{name}: the parts are {sorted(other.parts)}, not {sorted(joined.parts)}"
            raise Mismatch(Seen(what=what, given=given))
    with blaming(given):
        closing = joined.without("alibi")
        twice = closing & closing
    same_keep("the mask & itself", keep_of(twice, queries, keys, given), keep, given)


def _joined(masks: list[Mask]) -> Mask:
    total = masks[0]
    for mask in masks[1:]:
        total = total & mask
    return total


def _from_the_right(masks: list[Mask]) -> Mask:
    total = masks[-1]
    for mask in reversed(masks[:-1]):
        total = mask & total
    return total


@proves(
    "Two parts of one kind are both at once, too: the narrower window, the smaller prefix, both "
    "paddings, ids that are equal in both.",
    causes=(
        "the second part replaces the first",
        "the larger of two limits, or a None that wins over a number",
        "ids joined so that unlike pairs meet",
    ),
)
def check_mask_joins_its_kind(subject: MaskSubject, first: str, second: str, seed: int) -> None:
    for queries, keys in ((5, 5), (3, 7)):
        parts = [KINDS[first](queries, keys, seed), KINDS[second](queries, keys, seed + 77)]
        given = f"{parts[0].text} & {parts[1].text}, L = {queries}, S = {keys}"
        with blaming(given):
            mask = _joined([part.make(subject.masks) for part in parts])
        _is_meant(mask, parts, queries, keys, given)


JOINED = (
    ("causal", "causal"),
    ("window", "window"),
    ("causal", "window"),
    ("padding", "padding"),
    ("padding", "lengths"),
    ("segments", "segments"),
    ("segments", "documents"),
    ("pairs", "pairs"),
    ("pairs", "segments"),
    ("dense", "flat"),
    ("dense", "where"),
    ("bias", "bias"),
    ("bias", "alibi"),
)


Conflict = Callable[[type[Mask]], object]

CONFLICTS: Mapping[str, Conflict] = {
    "two_alibis": lambda m: m.alibi(torch.ones(2)) & m.alibi(torch.ones(2)),
    "paddings_of_two_batches": lambda m: m.padding(_open(2, 4)) & m.padding(_open(3, 4)),
    "paddings_of_two_lengths": lambda m: m.padding(_open(2, 4)) & m.padding(_open(2, 5)),
    "ids_of_two_lengths": lambda m: m.segments(_zeros(2, 4)) & m.segments(_zeros(2, 5)),
    "a_tensor": lambda m: m.causal() & _open(4, 4),
    "a_tensor_first": lambda m: _open(4, 4) & m.causal(),
    "causal_with_more_queries": lambda m: m.causal().keep(5, 4),
    "window_with_more_queries": lambda m: m.window(2, 0).keep(5, 4),
    "alibi_with_more_queries": lambda m: m.alibi(torch.ones(3)).logit_bias(5, 4),
    "ids_with_more_queries": lambda m: m.segments(_zeros(2, 4)).keep(5, 4),
    "padding_of_another_length": lambda m: m.padding(_open(2, 4)).keep(4, 5, 2, 3),
    "padding_of_another_batch": lambda m: m.padding(_open(2, 4)).keep(4, 4, 3, 3),
    "padding_of_one_sample": lambda m: m.padding(_open(1, 4)).keep(4, 4, 3, 3),
    "slopes_of_other_heads": lambda m: m.alibi(torch.ones(2)).check(2, 3, 4, 4),
    "dense_of_another_length": lambda m: m.dense(_open(4, 4)).keep(4, 5, 2, 3),
    "dense_of_another_head": lambda m: m.dense(_open(2, 2, 4, 4)).keep(4, 4, 2, 3),
    "dense_of_rank_three": lambda m: m.dense(_open(2, 4, 4)),
    "dense_of_numbers": lambda m: m.dense(torch.ones(4, 4)),
    "padding_of_integers": lambda m: m.padding(_zeros(2, 4)),
    "bias_of_bools": lambda m: m.bias(_open(4, 4)),
    "bias_of_another_length": lambda m: m.bias(torch.ones(4, 4)).logit_bias(4, 5),
    "query_ids_of_another_length": lambda m: m.segments(_zeros(2, 3), _zeros(2, 5)).keep(4, 5),
    "ids_of_floats": lambda m: m.segments(torch.ones(2, 4)),
    "documents_of_two_totals": lambda m: m.documents([[1, 2], [4]]),
    "an_empty_document": lambda m: m.documents([[0, 3]]),
    "a_window_without_limits": lambda m: m.window(None, None),
    "a_negative_window": lambda m: m.window(-1, 0),
    "a_negative_prefix": lambda m: m.causal(prefix=-1),
    "a_length_beyond_the_total": lambda m: m.lengths([3, 9], 5),
    "lengths_of_floats": lambda m: m.lengths([2.0, 3.0]),  # type: ignore[list-item]
    "negative_lengths": lambda m: m.lengths([2, -1]),
    "where_without_sizes": lambda m: m.where(lambda b, h, i, j: i >= j).keep(4, 4),
    "where_of_numbers": lambda m: m.where(lambda b, h, i, j: i - j).keep(4, 4, 2, 3),
    "where_of_too_few_arguments": lambda m: m.where(
        lambda i, j: i >= j  # type: ignore[arg-type, misc]
    ).keep(4, 4, 2, 3),
    "where_of_no_function": lambda m: m.where(_open(4, 4)),  # type: ignore[arg-type]
    "an_unknown_part": lambda m: m.causal().only("casual"),
    "rows_of_bools": lambda m: m.causal().rows(_open(4), 4, 4),
}
"""What says nothing, or two things, or belongs to another call."""


def _open(*size: int) -> Tensor:
    return torch.ones(size, dtype=torch.bool)


def _zeros(*size: int) -> Tensor:
    return torch.zeros(size, dtype=torch.long)


@proves(
    "What contradicts itself or the call raises MaskError: nothing is guessed, cut or broadcast.",
    causes=(
        "a size that broadcasting stretches, or a slice that shortens in silence",
        "a check that is left to torch, whose error says nothing of masks",
    ),
)
def check_mask_conflicts_raise(subject: MaskSubject, case: str) -> None:
    try:
        made = CONFLICTS[case](subject.masks)
    except MaskError:
        return
    except Exception as error:
        what = f"it raised {type(error).__name__}, expected MaskError"
        raise Mismatch(Seen(what=f"{what}: {error}", given=case)) from error
    raise Mismatch(Seen(what=f"it was answered: {type(made).__name__}", given=case))


@proves(
    "A size of 1 stands for every sample, head, query or key, in dense parts and biases.",
    causes=("a repeat over the wrong axis", "a size of 1 that is refused, or taken for the first"),
)
def check_mask_broadcasts(subject: MaskSubject, queries: int, keys: int) -> None:
    sizes = (BATCH, HEADS, queries, keys)
    for ones in itertools.product((False, True), repeat=4):
        size = tuple(1 if one else n for one, n in zip(ones, sizes, strict=True))
        given = f"{size} for (B, H, L, S) = {sizes}"
        keep, values = normal(*size, seed=1) > 0, normal(*size, seed=2)
        with blaming(given):
            dense, bias = subject.masks.dense(keep), subject.masks.bias(values)
        same_keep("a dense part", keep_of(dense, queries, keys, given), keep.expand(sizes), given)
        same_keep("a bias", keep_of(bias, queries, keys, given), _open(*sizes), given)
        _same_bias("a bias", bias_of(bias, queries, keys, given), values.expand(sizes), given)


EVERYTHING = ("causal", "window", "padding", "pairs", "dense", "flat", "where", "bias", "alibi")
"""Kinds that between them fill every field but the lengths of documents."""


def _made(masks: type[Mask], kind: str, queries: int, keys: int) -> Mask:
    """A mask of one kind, or of "everything": which closes so much that little else is seen."""
    kinds = EVERYTHING if kind == "everything" else (kind,)
    return _joined([KINDS[name](queries, keys, 3 + n).make(masks) for n, name in enumerate(kinds)])


def _tensors(mask: Mask) -> dict[str, Tensor]:
    held: dict[str, Tensor] = {}
    for field in dataclasses.fields(Mask):
        value = getattr(mask, field.name)
        many = value if isinstance(value, tuple) else (value,)
        held |= {f"{field.name}[{n}]": x for n, x in enumerate(many) if isinstance(x, Tensor)}
    return held


@proves(
    "A mask is a value: nothing that is asked of it, or joined with it, changes it or the tensors "
    "it was made of, and its fields cannot be set.",
    causes=(
        "an in-place &= or masked_fill_ on a part",
        "a cache on the mask that is keyed by too little",
        "a dataclass that is not frozen",
    ),
)
def check_mask_is_a_value(subject: MaskSubject, kind: str, queries: int, keys: int) -> None:
    given = f"{kind}, L = {queries}, S = {keys}"
    with blaming(given):
        mask = _made(subject.masks, kind, queries, keys)
        before = {name: (x, x.clone(), x._version) for name, x in _tensors(mask).items()}
        fields = {field.name: getattr(mask, field.name) for field in dataclasses.fields(Mask)}
        keep = keep_of(mask, queries, keys, given).clone()
        mask.logit_bias(queries, keys)
        mask.visible_rows(queries, keys, BATCH, HEADS)
        mask.rows(torch.tensor([0]), queries, keys)
        mask.without("alibi") & mask & subject.masks.window(0, 0) & subject.masks.causal()
        mask.to("cpu"), mask.only("padding"), mask.parts, mask.signature, repr(mask)
        mask.keep(queries, keys, BATCH, HEADS)
    for name, (tensor, value, version) in before.items():
        if tensor._version != version or not torch.equal(tensor, value):
            raise Mismatch(Seen(what=f"{name} was written to", given=given))
    for name, value in fields.items():
        if getattr(mask, name) is not value:
            raise Mismatch(Seen(what=f"the field {name} is another one afterwards", given=given))
    same_keep("asked again, it", keep_of(mask, queries, keys, given), keep, given)
    for name in fields:
        try:
            setattr(mask, name, None)
        except AttributeError:
            continue
        raise Mismatch(Seen(what=f"the field {name} can be set", given=given))


@proves(
    "Moved to a device, taken apart and put together as a pytree, or cut into parts and joined, it "
    "is the same mask.",
    causes=(
        "a tensor that is forgotten, or left where it was",
        "a part that is dropped where it is rebuilt",
        "tensors put back in another order",
    ),
)
def check_mask_moves_whole(subject: MaskSubject, kind: str, queries: int, keys: int) -> None:
    given = f"{kind}, L = {queries}, S = {keys}"
    with blaming(given):
        mask = _made(subject.masks, kind, queries, keys)
        away = mask.to("meta")
        leaves, tree = pytree.tree_flatten(mask)
        copies = {
            "moved to its own device": mask.to("cpu"),
            "as a pytree, put together again": pytree.tree_unflatten(leaves, tree),
            "as a pytree, its tensors copied": pytree.tree_map(lambda x: x.clone(), mask),
            "cut into its parts and joined": _joined([mask.only(p) for p in sorted(mask.parts)]),
        }
        for part in mask.parts:
            copies[f"without {part}, and that joined"] = mask.without(part) & mask.only(part)
    left = [name for name, x in _tensors(away).items() if x.device.type != "meta"]
    if left or away.parts != mask.parts:
        raise Mismatch(Seen(what=f".to('meta') left {left or 'a part'} behind", given=given))
    held = len(_tensors(mask))
    if not all(isinstance(x, Tensor) for x in leaves) or len(leaves) != held:
        what = f"the pytree has {len(leaves)} leaves, expected its {held} tensors"
        raise Mismatch(Seen(what=what, given=given))
    keep, bias = keep_of(mask, queries, keys, given), bias_of(mask, queries, keys, given)
    for name, copy in copies.items():
        same_keep(name, keep_of(copy, queries, keys, given), keep, given)
        _same_bias(name, bias_of(copy, queries, keys, given), bias, given)


@proves(
    "Lowered, a mask never weakens: rows that are picked see what they saw, what is closed stays "
    "closed in every dtype, and what is finite stays finite.",
    causes=(
        "rows picked before the queries are aligned with the last keys",
        "-inf replaced by a large number, or a large number that overflows to -inf",
        "a padding or a bias that is lost on the way",
    ),
)
def check_mask_lowering_never_weakens(
    subject: MaskSubject, queries: int, keys: int, seed: int
) -> None:
    meanings = drawn(seed, queries, keys, most=5)
    given = f"{' & '.join(m.text for m in meanings)}, L = {queries}, S = {keys}"
    with blaming(given):
        mask = _joined([m.make(subject.masks) for m in meanings])
        index = torch.tensor([queries - 1, 0, queries // 2])
        picked = mask.rows(index, queries, keys)
    # The rows of the lowered mask stand for themselves, so more of them than keys may be asked.
    want, added = meant_keep(meanings, queries, keys), meant_bias(meanings, queries, keys)
    same_keep("the rows", keep_of(picked, 3, keys, given), want[:, :, index], given)
    _same_bias("what the rows add", bias_of(picked, 3, keys, given), added[:, :, index], given)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        with blaming(given):
            far = mask & subject.masks.bias(torch.full((queries, keys), -1e30))
            bias = far.logit_bias(queries, keys, dtype=dtype)
        assert bias is not None
        told = f"{given}, and a bias of -1e30, {dtype}"
        shut = bias.expand(BATCH, HEADS, queries, keys) == -torch.inf
        same_keep("a finite bias", ~shut, added != -torch.inf, told)
        if bias.dtype != dtype:
            raise Mismatch(Seen(what=f"the bias is {bias.dtype}, expected {dtype}", given=given))
