"""D. A mask is a value: it is not changed, and it is moved as a whole."""

from __future__ import annotations

import dataclasses
import functools

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from polyattn.mask import Mask
from polyattn.testing.results import Mismatch, Seen, proves
from polyattn.testing.subjects.mask_forms import bias_of, joined, keep_of, same_bias, same_keep
from polyattn.testing.subjects.mask_meanings import BATCH, HEADS, KINDS, MaskSubject
from polyattn.testing.subjects.sequence import blaming
from polyattn.testing.tools.raising import must_raise

EVERYTHING = ("causal", "window", "padding", "pairs", "dense", "flat", "where", "bias", "alibi")
"""Kinds that between them fill every field but the lengths of documents."""


def _made(masks: type[Mask], kind: str, queries: int, keys: int) -> Mask:
    """A mask of one kind, or of "everything": which closes so much that little else is seen."""
    kinds = EVERYTHING if kind == "everything" else (kind,)
    return joined([KINDS[name](queries, keys, 3 + n).make(masks) for n, name in enumerate(kinds)])


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
        must_raise(
            functools.partial(setattr, mask, name, None),
            AttributeError,
            asked=f"setting the field {name}",
            expected="AttributeError",
            given=given,
        )


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
            "cut into its parts and joined": joined([mask.only(p) for p in sorted(mask.parts)]),
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
        same_bias(name, bias_of(copy, queries, keys, given), bias, given)
