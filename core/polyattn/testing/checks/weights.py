"""B. Values: outputs are means of the values, and the attention map is the one that made them."""

from __future__ import annotations

import torch
from torch import Tensor

from polyattn.capabilities import Part
from polyattn.contract import SequenceAttention
from polyattn.factory import weights
from polyattn.kit import repeat_heads
from polyattn.mask import Mask
from polyattn.testing.checks.causality import seen_by
from polyattn.testing.planned import Trait, having
from polyattn.testing.results import Mismatch, Seen, proves
from polyattn.testing.subjects.sequence import Instance, Subject, blaming
from polyattn.testing.tools.cases import RECTANGULAR, Sample, Shape
from polyattn.testing.tools.compare import output_tolerance
from polyattn.testing.tools.masks import combine
from polyattn.testing.tools.numerics import (
    compare,
    compare_bits,
    largest,
    need_finite,
    same_tolerance,
)


@proves(
    "Every number of the output lies between the least and the largest that the query may see.",
    causes=(
        "negative weights: features that can be negative",
        "heads merged without the transpose between heads and length",
        "closed keys that still count",
    ),
    claim="rows_sum_to_one",
)
def check_output_in_value_hull(subject: Subject, parts: tuple[Part, ...] = ()) -> None:
    shape = subject.fit(RECTANGULAR)
    sample, instance = _masked(subject, shape, parts), subject.at(shape)
    seen = seen_by(instance, sample).unsqueeze(-1)
    values = repeat_heads(sample.v, shape.heads).unsqueeze(2)
    some = seen.any(3)
    low = torch.where(seen, values, torch.inf).amin(3).where(some, 0.0)
    high = torch.where(seen, values, -torch.inf).amax(3).where(some, 0.0)
    got = instance(sample).detach()
    need_finite("the output", got, sample.describe())
    allowed = output_tolerance(sample)
    beyond = torch.maximum(low - got, got - high)
    if float(beyond.max()) > allowed:
        index = tuple(
            int(x) for x in torch.unravel_index(torch.tensor(int(beyond.argmax())), got.shape)
        )
        raise Mismatch(
            Seen(
                what=f"{int((beyond > allowed).sum())} of {got.numel()} outputs lie beyond the "
                f"values that are seen; here these go from {float(low[index]):.6g} to "
                f"{float(high[index]):.6g}",
                given=sample.describe(),
                index=index,
                got=float(got[index]),
                expected=float(got[index].clamp(low[index], high[index])),
                tolerance=allowed,
            )
        )


def _masked(subject: Subject, shape: Shape, parts: tuple[Part, ...]) -> Sample:
    wanted = sorted(subject.capabilities.requires | frozenset(parts))
    return subject.draw(shape).masked(combine(wanted, shape))


def emptying(part: Part, shape: Shape) -> Mask:
    """A mask that leaves nothing to sample 0: to all of its rows by padding, else to its row 1."""
    if part == "padding":
        real = torch.ones(shape.batch, shape.keys, dtype=torch.bool)
        real[0] = False
        return Mask.padding(real)
    keep = torch.ones(shape.batch, shape.heads, shape.queries, shape.keys, dtype=torch.bool)
    keep[0, :, 1] = False
    if part == "dense":
        return Mask.dense(keep)
    assert part == "bias"
    return Mask.bias(torch.zeros(keep.shape).masked_fill(~keep, -torch.inf))


@having(Trait.ON_THE_CPU)
@proves(
    "The attention map is the one that makes the output: times the values it gives it, closed "
    "entries are exactly zero, and asking for it changes nothing.",
    causes=(
        "values that enter elsewhere than in a weighted sum: clamped, normed, or by an added term",
        "a path for one width of values that differs from the others",
        "a closed key that keeps a small weight, or a row without keys that is not zero",
        "something remembered from the values of an earlier call",
    ),
    claim="linear_in_values",
)
def check_weights_agree(
    subject: Subject, shape: Shape, parts: tuple[Part, ...] = (), emptied: Part | None = None
) -> None:
    """emptied: by which part some rows are left without a key."""
    shape = subject.fit(shape)
    sample, instance = _masked(subject, shape, parts), subject.at(shape)
    if emptied is not None:
        sample = sample.masked(sample.mask & emptying(emptied, shape))
    module, given = instance.module(), sample.describe()
    assert isinstance(module, SequenceAttention)
    before = instance(sample)
    with blaming(given):
        found = weights(module, sample.q, sample.k, sample.mask, sample.inputs)
    need_finite("the attention map", found, given)
    told = "the output after the map was asked for"
    compare_bits(told, instance(sample), before, given=given)
    compare(
        "the attention map times the values, against the output",
        found @ repeat_heads(sample.v, shape.heads),
        before,
        tolerance=same_tolerance(sample.dtype, max(largest(sample.v), largest(before))),
        given=given,
    )
    _closed_are_zero(subject, instance, sample, found)


def _closed_are_zero(subject: Subject, instance: Instance, sample: Sample, found: Tensor) -> None:
    seen, given = seen_by(instance, sample), sample.describe()
    closed = torch.where(seen, 0.0, found)
    told = "the weight of what mask and pattern close"
    compare_bits(told, closed, torch.zeros_like(closed), given=given)
    if subject.capabilities.rows_sum_to_one:
        told, allowed = "the sum of a row of the attention map", same_tolerance(sample.dtype, 1.0)
        compare(told, found.sum(-1), seen.any(-1).to(found), tolerance=allowed, given=given)
