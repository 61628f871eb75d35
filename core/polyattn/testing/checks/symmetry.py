"""C. Symmetry: queries know nothing of each other, and keys that come twice count once."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from polyattn.capabilities import Part
from polyattn.mask import Mask
from polyattn.testing.planned import Trait, having
from polyattn.testing.results import proves
from polyattn.testing.subjects.sequence import Instance, Subject
from polyattn.testing.tools.cases import RECTANGULAR, SQUARE, Sample
from polyattn.testing.tools.compare import output_tolerance
from polyattn.testing.tools.masks import with_part
from polyattn.testing.tools.numerics import compare

ORDERLESS: tuple[Part, ...] = ("padding", "segments", "dense", "bias")
"""The parts that can be moved with the queries and keys they speak of."""


def moved(mask: Mask, *, queries: Tensor | None = None, keys: Tensor | None = None) -> Mask:
    """The mask for queries and keys in another order; its dense parts written out."""

    def pairs(x: Tensor) -> Tensor:
        x = x if queries is None or x.shape[-2] == 1 else x[..., queries, :]
        return x if keys is None or x.shape[-1] == 1 else x[..., keys]

    def along(x: Tensor | None, order: Tensor | None) -> Tensor | None:
        return x if x is None or order is None else x[:, order]

    return dataclasses.replace(
        mask,
        real=along(mask.real, keys),
        query_ids=along(mask.query_ids, queries),
        key_ids=along(mask.key_ids, keys),
        kept=tuple(pairs(x) for x in mask.kept),
        biases=tuple(pairs(x) for x in mask.biases),
    )


def shuffled(length: int, seed: int) -> Tensor:
    return torch.randperm(length, generator=torch.Generator().manual_seed(seed))


def _drawn(subject: Subject, part: Part | None) -> tuple[Sample, Instance]:
    """A sample, under a mask of this part, and the subject built for it."""
    shape = subject.fit(SQUARE if part is None else RECTANGULAR)
    sample = subject.draw(shape)
    if part is not None:
        sample = sample.masked(with_part(subject.capabilities, part, shape))
    return sample, subject.at(shape)


@having(Trait.AGAINST_SOFTMAX)
@proves(
    "The order of the keys does not matter, if their values and the columns of the mask go with "
    "them.",
    causes=(
        "a position that enters the logits",
        "keys dropped, pooled or weighed by their index",
        "a mask that is read by position: its first columns, its last real key",
    ),
    claim="key_order_invariant",
)
def check_key_order(subject: Subject, part: Part | None = None) -> None:
    sample, instance = _drawn(subject, part)
    order = shuffled(sample.k.shape[2], 3)
    compare(
        "the output for keys in another order",
        instance(sample.keys(order).masked(moved(sample.mask, keys=order))),
        instance(sample),
        tolerance=output_tolerance(sample),
        given=f"{sample.describe()}, keys {order.tolist()}",
    )


@proves(
    "Queries in another order give the same outputs in that order: each stands alone.",
    causes=(
        "a norm, a mean or a landmark taken over the queries",
        "a position that enters the logits",
        "rows of the mask read in another order than the queries",
    ),
    claim="key_order_invariant",
)
def check_query_order(subject: Subject, part: Part | None = None) -> None:
    sample, instance = _drawn(subject, part)
    order = shuffled(sample.q.shape[2], 5)
    turned = sample.having(q=sample.q[:, :, order]).masked(moved(sample.mask, queries=order))
    compare(
        "the output for queries in another order, against the outputs in that order",
        instance(turned),
        instance(sample)[:, :, order],
        tolerance=output_tolerance(sample),
        given=f"{sample.describe()}, queries {order.tolist()}",
    )


@proves(
    "Keys and values that all come twice give what they give once: only their shares count.",
    causes=(
        "a scale or a normaliser that depends on the number of keys",
        "a constant added to the denominator: a key that nobody gave",
        "landmarks or samples drawn by position",
    ),
    claim="rows_sum_to_one, key_order_invariant",
)
def check_key_duplication_invariance(subject: Subject, by: str) -> None:
    """by: ``blocks``, one copy after the other, or ``pairs``, each key beside its copy."""
    shape = subject.fit(RECTANGULAR)
    sample, instance = subject.draw(shape), subject.at(shape)
    slots = torch.arange(shape.keys)
    twice = slots.repeat(2) if by == "blocks" else slots.repeat_interleave(2)
    compare(
        "the output for keys that come twice, against once",
        instance(sample.keys(twice)),
        instance(sample),
        tolerance=output_tolerance(sample),
        given=f"{sample.describe()}, keys {twice.tolist()}",
    )
