"""B. Values: the definition in float64, low precision, rows that sum to one, degenerate sizes."""

from __future__ import annotations

import torch

from polyattn.capabilities import Part
from polyattn.testing.planned import Trait, having
from polyattn.testing.results import proves
from polyattn.testing.subjects.sequence import Subject
from polyattn.testing.tools.cases import SQUARE, TINY, Sample, Shape
from polyattn.testing.tools.compare import against_definition
from polyattn.testing.tools.masks import combine, learned, with_part
from polyattn.testing.tools.numerics import compare, need_finite, same_tolerance, value_tolerance

WRONG_VALUES = (
    "the scale: missing, from the wrong width, or applied twice",
    "the softmax or the normaliser over the wrong axis",
    "a mask that is dropped, inverted, or aligned at the other end",
    "an epsilon or a clamp in the denominator",
    "a path of the gradient that is cut by detach() or left out",
)


@having(Trait.AGAINST_SOFTMAX)
@proves(
    "The output and each gradient are those of the definition, in float64.",
    causes=WRONG_VALUES,
    claim="exactness",
)
def check_matches_reference(
    subject: Subject,
    shape: Shape,
    parts: tuple[Part, ...] = (),
    seed: int = 0,
    learns_mask: bool = False,
) -> None:
    """``learns_mask``: biases and slopes require gradients, too."""
    shape = subject.fit(shape)
    mask = combine(sorted(subject.capabilities.requires | frozenset(parts)), shape, seed)
    sample = subject.draw(shape, seed=seed).masked(learned(mask) if learns_mask else mask)
    against_definition(subject.at(shape), sample)


@having(Trait.AGAINST_SOFTMAX)
@proves(
    "The output, and that of reference(), are those of a loop over the formula.",
    causes=WRONG_VALUES,
    claim="exactness",
)
def check_matches_loop(subject: Subject, parts: tuple[Part, ...] = ()) -> None:
    shape = subject.fit(TINY)
    mask = combine(sorted(subject.capabilities.requires | frozenset(parts)), shape)
    sample = subject.draw(shape).masked(mask)
    instance = subject.at(shape)
    expected = instance.loop(sample)
    for what, got in (
        ("the output", instance(sample)),
        ("the output of its reference()", instance.own_reference(sample)),
    ):
        if got is not None:
            plain = instance.definition(sample)
            allowed = value_tolerance(expected, plain, sample.dtype)
            compare(what, got, expected, tolerance=allowed, given=sample.describe())


@having(Trait.AGAINST_SOFTMAX)
@proves(
    "In each dtype the error is at most thrice the plain computation's, plus two roundings.",
    causes=(
        "sums accumulated in the half type; use float32 for logits, softmax and normaliser",
        "logits that lose their digits before the maximum is taken off",
        "a constant or a table in too narrow a type",
    ),
    claim="devices (dtypes)",
)
def check_low_precision_error(subject: Subject, dtype: torch.dtype) -> None:
    shape = subject.fit(SQUARE)
    for seed in (0, 1):
        sample = subject.draw(shape, dtype=dtype, seed=seed, std=1.0)
        against_definition(subject.at(shape, dtype=dtype), sample)


@having(Trait.AGAINST_SOFTMAX)
@proves(
    "The weights of each row sum to one: values of 1 give an output of 1.",
    causes=(
        "an epsilon added to the denominator, or the normaliser clamped",
        "the mask applied after the softmax",
        "a feature map that underflows for very negative inputs",
        "dropout that acts in evaluation",
    ),
    claim="rows_sum_to_one",
)
def check_rows_sum_to_one(
    subject: Subject,
    part: Part | None = None,
    level: float | None = None,
    dtype: torch.dtype | None = None,
) -> None:
    """``level``: what q and k are centred at, with a tenth of the usual spread."""
    shape = subject.fit(SQUARE)
    sample = subject.draw(shape, dtype=dtype)
    if part is not None:
        sample = sample.masked(with_part(subject.capabilities, part, shape))
    if level is not None:
        sample = sample.having(q=sample.q * 0.1 + level, k=sample.k * 0.1 + level)
    sample = sample.having(v=torch.ones_like(sample.v))
    got = subject.at(shape, dtype=dtype)(sample)
    compare(
        "the output for values of 1",
        got,
        torch.ones_like(sample.q[..., :1]).expand(*sample.q.shape[:3], shape.value_dim),
        tolerance=same_tolerance(sample.dtype, 1.0),
        given=sample.describe() + ("" if level is None else f", q and k around {level}"),
    )


DEGENERATE: dict[str, Shape] = {
    "one_key": Shape(name="", queries=1, keys=1),
    "one_query": Shape(name="", queries=1, keys=7),
    "one_sample_one_head": Shape(name="", batch=1, heads=1, queries=4, keys=4),
    "one_key_for_five": Shape(name="", queries=5, keys=1),
    "width_1": Shape(name="", head_dim=1, value_dim=1),
    "width_7": Shape(name="", head_dim=7, value_dim=7),
    "width_80": Shape(name="", head_dim=80, value_dim=80),
    "width_96": Shape(name="", head_dim=96, value_dim=96),
    "width_160": Shape(name="", queries=37, keys=37, head_dim=160, value_dim=160),
    "wide_values": Shape(name="", head_dim=4, value_dim=9),
    "empty_batch": Shape(name="", batch=0),
    "no_queries": Shape(name="", queries=0, keys=5),
    "no_keys": Shape(name="", queries=5, keys=0),
    "nothing": Shape(name="", queries=0, keys=0),
}
"""Sizes at which squeezes, views and tables of widths go wrong."""

EMPTY = frozenset({"empty_batch", "no_queries", "no_keys", "nothing"})
UNUSUAL = EMPTY | {"width_160"}
"""What code from elsewhere may refuse by whatever it raises."""


@proves(
    "Degenerate sizes work: one key, one query, widths of 1, 7, 80 and 160, nothing at all.",
    causes=(
        "view(-1) on an empty tensor, or amax over an empty dimension",
        "squeeze() where a size is 1 by chance",
        "a table of head widths",
    ),
    claim="lengths, unequal_lengths, value_width",
)
def check_degenerate_sizes(subject: Subject, case: str) -> None:
    shape = DEGENERATE[case]
    sample = subject.draw(shape)
    instance = subject.at(shape)
    if case in EMPTY:
        _empty(subject, shape, sample)
    elif subject.has_definition:
        against_definition(instance, sample)
    else:
        need_finite("the output", instance(sample), sample.describe())
    if case == "one_key" and subject.capabilities.rows_sum_to_one:
        compare(
            "the output for a single key",
            instance(sample),
            sample.v,
            tolerance=same_tolerance(sample.dtype, 3.0),
            given=sample.describe(),
        )


def _empty(subject: Subject, shape: Shape, sample: Sample) -> None:
    """Zeros of the right shape, and gradients of the right shapes."""
    instance, given = subject.at(shape), sample.describe()
    zeros = sample.q.new_zeros(shape.batch, shape.heads, shape.queries, shape.value_dim)
    if not subject.backward:
        compare("the output", instance(sample), zeros, tolerance=0.0, given=given)
        return
    outcome = instance.run(sample)
    compare("the output", outcome.out, zeros, tolerance=0.0, given=given)
    for name, leaf in sample.leaves().items():
        compare(
            f"the gradient of {name}",
            outcome.grads[name],
            torch.zeros_like(leaf),
            tolerance=0.0,
            given=given,
        )
