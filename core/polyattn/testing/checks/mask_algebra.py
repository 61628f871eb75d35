"""D. Masks themselves: each part means what it says, together they mean all of it."""

from __future__ import annotations

import itertools

import torch

from polyattn.mask import Mask
from polyattn.testing.results import Mismatch, Seen, proves
from polyattn.testing.subjects.mask_forms import bias_of, joined, keep_of, same_bias, same_keep
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

LENGTHS = ((1, 1), (5, 5), (3, 7), (1, 6), (4, 9), (6, 2))
"""(L, S); the last for parts that count no positions."""


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
    same_bias("what is added", got, added, given)


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
        mask = joined(masks)
        others = {
            "the parts in reverse": joined(masks[::-1]),
            "grouped from the right": _from_the_right(masks),
            "& the full mask": mask & subject.masks.full(),
            "the full mask &": subject.masks.full() & mask,
        }
    _is_meant(mask, meanings, queries, keys, given)
    keep, bias = keep_of(mask, queries, keys, given), bias_of(mask, queries, keys, given)
    for name, other in others.items():
        same_keep(name, keep_of(other, queries, keys, given), keep, given)
        same_bias(name, bias_of(other, queries, keys, given), bias, given)
        if other.parts != mask.parts:
            what = f"{name}: the parts are {sorted(other.parts)}, not {sorted(mask.parts)}"
            raise Mismatch(Seen(what=what, given=given))
    with blaming(given):
        closing = mask.without("alibi")
        twice = closing & closing
    same_keep("the mask & itself", keep_of(twice, queries, keys, given), keep, given)


def _from_the_right(masks: list[Mask]) -> Mask:
    total = masks[-1]
    for mask in reversed(masks[:-1]):
        total = mask & total
    return total


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
            mask = joined([part.make(subject.masks) for part in parts])
        _is_meant(mask, parts, queries, keys, given)


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
        same_keep(
            "a bias",
            keep_of(bias, queries, keys, given),
            torch.ones(sizes, dtype=torch.bool),
            given,
        )
        same_bias("a bias", bias_of(bias, queries, keys, given), values.expand(sizes), given)


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
        mask = joined([m.make(subject.masks) for m in meanings])
        index = torch.tensor([queries - 1, 0, queries // 2])
        picked = mask.rows(index, queries, keys)
    # The rows of the lowered mask stand for themselves, so more of them than keys may be asked.
    want, added = meant_keep(meanings, queries, keys), meant_bias(meanings, queries, keys)
    same_keep("the rows", keep_of(picked, 3, keys, given), want[:, :, index], given)
    same_bias("what the rows add", bias_of(picked, 3, keys, given), added[:, :, index], given)
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
