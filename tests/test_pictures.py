"""The pages of the variants draw what may be seen: each picture is compared with the variant.

A picture is a block like this one, rows for queries, columns for keys::

    ```visible
    attention: {name: local_window, left: 1}
    mask: causal
    ---
    #..
    ##.
    .##
    ```

``mask`` may be left out, or ``causal``, or a mapping of several parts, such as ``{causal: 0,
window: [2, 0]}``, ``{documents: [2, 3]}``. ``head``: which of four heads is drawn, the first if
left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import and_
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import polyattn
from polyattn import Mask, OperationSpec, SequenceAttention, Sizes, VariantSpec
from polyattn.registry import discover

PAGES = Path(__file__).parents[1] / "docs" / "variants"
HEADS, WIDTH = 4, 4
PARTS: dict[str, Callable[[Any], Mask]] = {
    "causal": Mask.causal,
    "window": lambda ends: Mask.window(*ends),
    "documents": Mask.documents,
    "lengths": Mask.lengths,
}


@dataclass(frozen=True)
class Picture:
    """One block: what it says at its head, and its rows."""

    page: str
    number: int
    head: dict[str, Any]
    rows: tuple[str, ...]

    @property
    def drawn(self) -> torch.Tensor:
        return torch.tensor([[mark == "#" for mark in row] for row in self.rows])


def pictures(page: Path) -> list[Picture]:
    blocks = re.findall(r"^```visible\n(.*?)^---\n(.*?)^```", page.read_text("utf-8"), re.S | re.M)
    return [
        Picture(page.stem, number, yaml.safe_load(head), tuple(rows.split()))
        for number, (head, rows) in enumerate(blocks)
    ]


def masked(said: str | dict[str, Any] | None) -> Mask:
    parts = {"causal": 0} if said == "causal" else dict(said or {})  # type: ignore[arg-type]
    return reduce(and_, (PARTS[part](value) for part, value in parts.items()), Mask())


def built(attention: str | dict[str, Any], longest: int) -> SequenceAttention:
    options = {"name": attention} if isinstance(attention, str) else dict(attention)
    sizes = Sizes(heads=HEADS, head_dim=WIDTH, max_length=longest)
    variant = polyattn.create(options.pop("name"), sizes, **options)
    assert isinstance(variant, SequenceAttention)
    return variant.double().eval()


def seen(picture: Picture) -> torch.Tensor:
    """What one head of the variant sees: bool (L, S), by the gradients of its output."""
    torch.manual_seed(0)
    queries, keys = picture.drawn.shape
    variant = built(picture.head["attention"], keys)
    q, k, v = (torch.randn(1, HEADS, n, WIDTH).double() for n in (queries, keys, keys))
    v.requires_grad_()
    inputs = {}
    for name, size in variant.side_inputs.items():
        heads, width = size.resolve(Sizes(HEADS, WIDTH))
        inputs[name] = torch.randn(1, heads, keys, width).double()
    out = variant(q, k, v, masked(picture.head.get("mask")), inputs)
    head = picture.head.get("head", 0)
    reached = [torch.autograd.grad(row.sum(), v, retain_graph=True)[0] for row in out[0, head]]
    return torch.stack([grad[0, head].abs().sum(-1) > 0 for grad in reached])


DRAWN = [picture for page in sorted(PAGES.glob("*.md")) for picture in pictures(page)]


@pytest.mark.parametrize("picture", DRAWN, ids=lambda p: f"{p.page}-{p.number}")
def test_a_picture_shows_what_the_variant_sees(picture: Picture) -> None:
    assert set(picture.head) <= {"attention", "mask", "head"}, "a word that nobody reads"
    assert len({len(row) for row in picture.rows}) == 1
    assert set("".join(picture.rows)) <= set("#.")
    found = seen(picture)
    shown = "\n".join("".join(".#"[bool(mark)] for mark in row) for row in found)
    assert torch.equal(found, picture.drawn), f"it sees\n{shown}"


def _sequence_variants() -> list[str]:
    found = discover()
    entries = {**found.variants, **found.operations}
    return [
        name
        for name, entry in entries.items()
        if entry.distribution == "polyattn"
        and (
            isinstance(entry.spec, OperationSpec)
            or (isinstance(entry.spec, VariantSpec) and entry.spec.kind == "sequence")
        )
        and name not in {"xformers", "flex"}
    ]


@pytest.mark.parametrize("name", _sequence_variants())
def test_each_sequence_variant_has_a_picture(name: str) -> None:
    """On its page, and of itself."""
    drawn = [picture.head["attention"] for picture in pictures(PAGES / f"{name}.md")]
    assert name in {one if isinstance(one, str) else one["name"] for one in drawn}


def test_a_wrong_picture_is_found() -> None:
    right = Picture(
        "", 0, {"attention": {"name": "local_window", "left": 1}}, ("#..", "##.", ".##")
    )
    assert torch.equal(seen(right), right.drawn)
    wrong = Picture("", 0, right.head, ("#..", "##.", "###"))
    assert not torch.equal(seen(wrong), wrong.drawn)
