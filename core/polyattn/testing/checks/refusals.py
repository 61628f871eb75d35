"""A. Contract, the other direction: what is not claimed raises, and never goes unheard."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from polyattn.capabilities import ORDERED_PARTS
from polyattn.errors import ConfigError, Unsupported
from polyattn.testing.results import Mismatch, Seen, proves
from polyattn.testing.subjects.variant import VariantSubject
from polyattn.testing.tools.cases import LONGEST, SQUARE, Sample, Shape
from polyattn.testing.tools.masks import combine, with_part
from polyattn.testing.tools.raising import must_raise

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def unclaimed(subject: VariantSubject) -> Iterator[str]:
    """What this variant does not claim, each of which must raise."""
    claims = subject.capabilities
    yield from (f"mask_{part}" for part in ORDERED_PARTS if part not in claims.masks)
    yield from (f"without_{part}" for part in ORDERED_PARTS if part in claims.requires)
    yield from (f"dtype_{name_of(dtype)}" for dtype in DTYPES if dtype not in subject.dtypes)
    rule = claims.lengths
    for name, missing in (
        ("unequal_lengths", not claims.unequal_lengths),
        ("value_width", not claims.value_width),
        ("grouped_heads", claims.grouped_heads == "no"),
        ("dropout", not claims.dropout),
        ("state", claims.state == "none"),
        ("length_multiple", rule.multiple_of > 1),
        ("length_at_least", rule.at_least > 1),
        ("length_up_to", rule.up_to is not None),
        ("grad", not subject.backward),
    ):
        if missing:
            yield name


def name_of(dtype: torch.dtype) -> str:
    """``float16`` for ``torch.float16``."""
    return str(dtype).removeprefix("torch.")


@proves(
    "What is not claimed raises Unsupported and names itself; nothing is ever ignored in silence.",
    causes=(
        "a mask part or an option that attend() does not read",
        "a claim that is missing: if the call works, declare it",
        "forward() overridden, so that the base class checks nothing",
    ),
)
def check_unsupported_raises(subject: VariantSubject, claim: str) -> None:
    word = WORDS.get(claim, claim.partition("_")[2])
    error = must_raise(
        lambda: _ask_for(subject, claim),
        Unsupported,
        ConfigError,
        asked=f"{claim}, which is not claimed,",
        expected="Unsupported",
    )
    if word not in str(error):
        what = f"it raised {type(error).__name__}, which does not name {word!r}: {error}"
        raise Mismatch(Seen(what=what)) from error


WORDS = {
    "unequal_lengths": "length",
    "value_width": "value_dim",
    "grouped_heads": "kv_heads",
    "dropout": "dropout",
    "state": "state",
    "length_multiple": "length",
    "length_at_least": "length",
    "length_up_to": "length",
    "grad": "grad",
}
"""What the message must hold, where it is not the last word of the claim."""


def _ask_for(subject: VariantSubject, claim: str) -> None:
    """Make the call that is not claimed."""
    shape = subject.fit(SQUARE)
    kind, _, what = claim.partition("_")
    if kind == "dtype":
        dtype = getattr(torch, what)
        subject.build(shape.sizes, dtype).raw(subject.draw(shape, dtype=dtype))
    elif claim == "dropout":
        module = subject.with_options(dropout=0.5).train()
        sample = subject.draw(subject.fit(shape), dtype=torch.float32)
        module(sample.q, sample.k, sample.v, sample.mask, sample.inputs)
    elif claim == "state":
        subject.at(shape).new_state(shape.batch, shape.sizes, subject.dtype)
    else:
        wrong = _wrong_shape(subject, shape, claim)
        subject.build(wrong.sizes, subject.dtype).raw(_wrong_sample(subject, wrong, claim))


def _wrong_shape(subject: VariantSubject, shape: Shape, claim: str) -> Shape:
    rule = subject.capabilities.lengths
    limit = LONGEST if rule.up_to == "max_length" else rule.up_to
    lengths = {
        "length_multiple": shape.keys + 1,
        "length_at_least": rule.at_least - 1,
        "length_up_to": (limit or 0) + rule.multiple_of,
    }
    if claim in lengths:
        return shape.of(keys=lengths[claim], queries=lengths[claim], batch=1)
    if claim == "unequal_lengths":
        return shape.of(queries=shape.keys // 2)
    if claim == "value_width":
        return shape.of(value_dim=shape.head_dim + 1)
    if claim == "grouped_heads":
        return shape.of(heads=4, kv_heads=2)
    return shape


def _wrong_sample(subject: VariantSubject, shape: Shape, claim: str) -> Sample:
    sample = subject.draw(shape)
    kind, _, part = claim.partition("_")
    if kind == "mask":
        known = next(p for p in ORDERED_PARTS if p == part)
        return sample.masked(with_part(subject.capabilities, known, shape))
    if kind == "without":
        others = sorted(subject.capabilities.requires - {part})
        return sample.masked(combine(others, shape))
    if claim == "grad":
        return sample.each(lambda x: x.requires_grad_())
    return sample
