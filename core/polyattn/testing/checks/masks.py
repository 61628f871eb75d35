"""D. Masks: broadcasting, polarity, combinations, closed keys."""

from __future__ import annotations

import functools
import itertools

import torch
from torch import Tensor

from polyattn.capabilities import Part
from polyattn.errors import MaskError
from polyattn.mask import Mask
from polyattn.testing.planned import Trait, having
from polyattn.testing.results import Mismatch, Seen, proves
from polyattn.testing.subjects.sequence import Subject
from polyattn.testing.tools.cases import RECTANGULAR, SQUARE, Sample, Shape, normal
from polyattn.testing.tools.compare import against_definition, output_tolerance
from polyattn.testing.tools.masks import combine, random_keep
from polyattn.testing.tools.numerics import compare
from polyattn.testing.tools.raising import must_raise


@proves(
    "A mask of any shape that broadcasts to (B, H, L, S) equals the same mask written out.",
    causes=(
        "repeat in place of repeat_interleave over batch and heads",
        "unsqueeze at another place, or L and S exchanged",
        "the mask of the first sample or head used for all",
    ),
    claim="masks (dense, bias)",
)
def check_mask_broadcast_shapes(subject: Subject, part: Part, shape: Shape) -> None:
    shape = subject.fit(shape)
    full = (shape.batch, shape.heads, shape.queries, shape.keys)
    base = subject.draw(shape)
    instance = subject.at(shape).natural()
    sizes: list[tuple[int, ...]] = list(itertools.product(*((size, 1) for size in full)))
    for seed, size in enumerate([*sizes, full[2:]]):
        values = normal(*size, seed=seed)
        if subject.raw_masks and part == "dense":
            # What strangers give for a row that sees nothing is another check's question.
            values[..., 0] = 1.0
        extra = Mask.bias(values) if part == "bias" else Mask.dense(values > -0.4)
        sample = base.masked(base.mask & extra)
        if subject.raw_masks and not instance.accepts(sample):
            continue
        note = f"{part} of shape {size}"
        if subject.has_definition:
            against_definition(instance, sample, gradients=False, note=note)
        else:
            wide = values.expand(full)
            same = Mask.bias(wide) if part == "bias" else Mask.dense(wide > -0.4)
            compare(
                "the output, against that for the mask written out",
                instance(sample),
                instance(base.masked(base.mask & same)),
                tolerance=output_tolerance(sample),
                given=f"{sample.describe()}, {note}",
            )


@having(Trait.WHAT_TRUE_MEANS)
@proves(
    "True means may attend, -inf in a bias closes, and a finite bias is added to the logits.",
    causes=(
        "the mask inverted before masked_fill",
        "a float mask turned into booleans, or a boolean one added",
        "a bias multiplied by the scale, or dropped",
    ),
    claim="masks (dense, bias)",
)
def check_mask_polarity_and_dtype(subject: Subject, case: str) -> None:
    shape = subject.fit(RECTANGULAR)
    size = (shape.batch, shape.heads, shape.queries, shape.keys)
    base, instance = subject.draw(shape), subject.at(shape)
    keep = random_keep(*size, seed=5)
    shut = torch.zeros(size, dtype=base.dtype).masked_fill(~keep, -torch.inf)

    def out(extra: Mask) -> Tensor:
        return instance(base.masked(base.mask & extra))

    if case == "raw_tensor_raises":
        _raw_tensors_raise(subject, base, keep)
    elif case == "true_attends":
        _closed_keys_are_unseen(subject, base, keep)
    elif case == "minus_infinity_closes":
        compare(
            "the output for a bias of 0 and -inf, against that for the boolean mask",
            out(Mask.bias(shut)),
            out(Mask.dense(keep)),
            tolerance=output_tolerance(base),
            given=base.describe(),
        )
    else:
        _finite_bias_is_added(subject, base, normal(*size, seed=6))


def _raw_tensors_raise(subject: Subject, base: Sample, keep: Tensor) -> None:
    instance = subject.at(subject.fit(RECTANGULAR))
    for raw in (keep, keep.to(base.dtype), keep.to(torch.uint8), keep[:, 0, 0]):
        sample = base.masked(raw)  # type: ignore[arg-type]
        must_raise(
            functools.partial(instance.raw, sample),
            MaskError,
            asked=f"a {raw.dtype} tensor in place of a mask",
            expected="MaskError",
            given=base.describe(),
        )


def _closed_keys_are_unseen(subject: Subject, base: Sample, keep: Tensor) -> None:
    """Keys closed for all rows may change at will, open ones are seen."""
    shape = subject.fit(RECTANGULAR)
    instance = subject.at(shape)
    columns = torch.arange(shape.keys) % 3 != 1
    sample = base.masked(base.mask & Mask.dense(columns.expand(shape.queries, -1).clone()))
    fresh = sample.v + 7.0
    for name, changed, same in (
        ("closed", torch.where(columns[:, None], sample.v, fresh), True),
        ("open", torch.where(columns[:, None], fresh, sample.v), False),
    ):
        before, after = instance(sample), instance(sample.having(v=changed))
        equal = torch.allclose(before, after, rtol=0, atol=output_tolerance(sample))
        if equal is not same:
            verb = "did not change" if equal else "changed"
            what = f"the output {verb} when the values of the {name} keys did"
            raise Mismatch(Seen(what=what, given=sample.describe()))


def _finite_bias_is_added(subject: Subject, base: Sample, bias: Tensor) -> None:
    instance = subject.at(subject.fit(RECTANGULAR))
    sample = base.masked(base.mask & Mask.bias(bias.to(base.dtype)))
    if subject.has_definition:
        against_definition(instance, sample, gradients=False, note="a finite bias")
    elif torch.allclose(instance(sample), instance(base)):
        raise Mismatch(Seen(what="a finite bias changed nothing", given=sample.describe()))


@proves(
    "Masks given together all hold: causal, padding, window, segments and a pattern, as one AND.",
    causes=(
        "one mask dropped when another is given",
        "masks combined with OR, or added where they should be and-ed",
        "a padded key that also closes the query in its row",
    ),
    claim="masks",
)
def check_causal_with_padding(subject: Subject, parts: tuple[Part, ...], shape: Shape) -> None:
    shape = subject.fit(shape)
    together = sorted(subject.capabilities.requires | frozenset(parts))
    sample = subject.draw(shape).masked(combine(together, shape))
    against_definition(subject.at(shape), sample)


@proves(
    "A closed key has weight zero whatever its logit, and does not set the scale for the others.",
    causes=(
        "a finite number such as -1e4, added or filled in, in place of closing",
        "the maximum taken before the mask, so that the open keys round to zero",
        "a stabiliser taken over all keys, closed ones included",
    ),
    claim="masks",
)
def check_masked_logits_cannot_win(subject: Subject, part: Part) -> None:
    """Key 2 (for causal: the last) is closed, and its logit is made to tower above all others.

    A number added to a closed logit is seen where that logit is huge; a number put in its place,
    where all open logits are lower still.
    """
    shape = subject.fit(SQUARE)
    base, instance = subject.draw(shape), subject.at(shape)
    closed = shape.keys - 1 if part == "causal" else 2
    rows = torch.arange(shape.queries)
    mask, rows = _closing(part, shape, closed, rows)
    level = 1e6 if base.dtype == torch.float64 else 2e2
    q = base.q.abs() + 0.5
    loud = base.k.clone()
    loud[:, :, closed] = level * shape.head_dim**0.5
    quiet = base.having(q=q).masked(base.mask & mask)
    got, want = instance(quiet.having(k=loud)), instance(quiet)
    compare(
        f"the output of rows that do not see key {closed}, whose logit was made huge",
        got[:, :, rows],
        want[:, :, rows],
        tolerance=output_tolerance(base),
        given=quiet.describe(),
    )
    if not subject.softmax:
        return
    # Open keys all alike: their weights stay equal however far down they are. Logits of about
    # -1e6 do occur; a fill of -1e9 below them is no fault that anyone will meet.
    sunk = torch.full_like(base.k, -1e6)
    sunk[:, :, closed] = 0
    v = base.v.clone()
    v[:, :, closed] += 1e3
    low = quiet.having(k=sunk)
    compare(
        f"the output of rows that do not see key {closed}, when its value changed and the logits "
        "of all open keys lay far below zero",
        instance(low.having(v=v))[:, :, rows],
        instance(low)[:, :, rows],
        tolerance=output_tolerance(base),
        given=low.describe(),
    )


def _closing(part: Part, shape: Shape, closed: int, rows: Tensor) -> tuple[Mask, Tensor]:
    """A mask of one part that closes key ``closed``, and the rows for which it does."""
    keep = torch.ones(shape.queries, shape.keys, dtype=torch.bool)
    keep[:, closed] = False
    if part == "causal":
        return Mask.causal(), rows[rows < closed]
    if part == "window":
        return Mask.window(2, 1), rows[(rows > closed + 2) | (rows < closed - 1)]
    if part == "padding":
        return Mask.padding(keep[:1].expand(shape.batch, -1).clone()), rows
    if part == "bias":
        return Mask.bias(torch.zeros(keep.shape).masked_fill(~keep, -torch.inf)), rows
    if part == "segments":
        ids = (torch.arange(shape.keys) == closed).long().expand(shape.batch, -1).clone()
        return Mask.segments(ids), rows[rows != closed]
    return Mask.dense(keep), rows
