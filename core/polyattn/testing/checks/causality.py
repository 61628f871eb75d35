"""E. Causality: the future has no gradient and no effect, however loud; the past has both."""

from __future__ import annotations

import torch
from torch import Tensor

from polyattn.capabilities import Part
from polyattn.errors import PolyattnError
from polyattn.mask import Mask
from polyattn.testing.results import Mismatch, Seen, proves
from polyattn.testing.subjects.sequence import Instance, Subject, blaming, fixed_gradient, gradients
from polyattn.testing.tools.cases import SQUARE, Sample, Shape, normal
from polyattn.testing.tools.compare import against_definition, output_tolerance
from polyattn.testing.tools.masks import combine, needed
from polyattn.testing.tools.numerics import compare, need_finite
from polyattn.testing.tools.raising import must_raise

LEAKS = (
    "the mask aligned at the first key where L and S differ: tril(L, S)",
    "causal dropped when another mask is given, or the other way round",
    "a maximum, mean or landmark taken over all positions",
    "causality by block: a block's summary holds tokens after the query",
)


def causal_sample(subject: Subject, shape: Shape, parts: tuple[Part, ...] = ()) -> Sample:
    """A sample under a causal mask and what else is asked for."""
    wanted = sorted(subject.capabilities.requires | {"causal", *parts})
    return subject.draw(shape).masked(combine(wanted, shape))


def row_gradients(instance: Instance, sample: Sample) -> list[dict[str, Tensor]]:
    """For each query i, the gradient of out_i (all samples and heads) to every leaf."""
    fresh = sample.each(lambda x: x.detach().clone().requires_grad_())
    leaves = fresh.leaves()
    out = instance(fresh)
    weight = fixed_gradient(out).abs() + 0.1
    rows = []
    for i in range(out.shape[2]):
        only = torch.zeros_like(weight)
        only[:, :, i] = weight[:, :, i]
        with blaming(sample.describe()):
            rows.append(gradients(out, leaves, only.to(out.dtype), again=True))
    return rows


@proves(
    "An output has exactly zero gradient to later keys, values and queries, and a non-zero one to "
    "every value it may see.",
    causes=(
        *LEAKS,
        "a finite fill in place of -inf, or a mask after the softmax: a little is left",
        "a strict mask, j < i, that hides the query's own key",
    ),
    claim="masks (causal)",
)
def check_causality_by_gradient(
    subject: Subject, shape: Shape, parts: tuple[Part, ...] = ()
) -> None:
    shape = subject.fit(shape)
    sample, instance = causal_sample(subject, shape, parts), subject.at(shape)
    length, keys = sample.lengths
    visible = seen_by(instance, sample)
    if not subject.sees_all:
        own = torch.arange(keys) == torch.arange(length)[:, None] + keys - length
        visible = visible & own
    rows = row_gradients(instance, sample)
    for i, grads in enumerate(rows):
        last = i + keys - length
        for name, grad in grads.items():
            need_finite(f"the gradient of output {i} to {name}", grad, sample.describe())
            later = grad[:, :, (i if name == "q" else last) + 1 :]
            if bool((later != 0).any()):
                j = int((later != 0).any(-1).flatten(0, 1).any(0).nonzero()[0])
                j += (i if name == "q" else last) + 1
                raise Mismatch(
                    Seen(
                        what=f"output {i} depends on {name} {j}, which lies after it "
                        f"(gradient up to {float(later.abs().max()):.3g}, expected exactly 0)",
                        given=sample.describe(),
                    )
                )
    deaf = visible & ~heard_in(rows, sample.q.shape[1])
    if not subject.hears_all:
        deaf &= ~heard_where_preferred(instance, sample, deaf)
    if bool(deaf.any()):
        i, b, h, j = (int(x) for x in deaf.permute(2, 0, 1, 3).nonzero()[0])
        what = f"output {i} does not depend on value {j} of sample {b}, head {h}, which it may see"
        raise Mismatch(Seen(what=what, given=sample.describe()))


def heard_in(rows: list[dict[str, Tensor]], heads: int) -> Tensor:
    """Bool (B, H, L, S): the values to which an output has a gradient; a group hears as one."""
    grads = torch.stack([row["v"] for row in rows], dim=2)
    return (grads != 0).any(-1).repeat_interleave(heads // grads.shape[1], dim=1)


LOUD = 6.0
"""The length of queries and keys where one is to be preferred: 13 above the others, at a width of
8."""


def preferring(sample: Sample, j: int, sign: float = 1.0) -> Sample:
    """Every query is key ``j``, or its opposite; keys are of one length, and of ``LOUD``."""
    k = sample.k / sample.k.norm(dim=-1, keepdim=True).clamp(min=1e-9) * LOUD
    like = sign * k[:, :, j : j + 1].repeat_interleave(sample.q.shape[1] // k.shape[1], dim=1)
    return sample.having(q=like.expand_as(sample.q).contiguous(), k=k)


def heard_where_preferred(instance: Instance, sample: Sample, asked: Tensor) -> Tensor:
    """Those of ``asked`` (B, H, L, S) that count where their key is most like the query, or most
    unlike it.

    A kernel that is no exact softmax may give a key no weight at all, as sparsemax and squared
    ReLU do: but not a key that it prefers.
    """
    heard, heads = torch.zeros_like(asked), sample.q.shape[1]
    for sign in (1.0, -1.0):
        for j in range(sample.lengths[1]):
            if bool((asked & ~heard)[..., j].any()):
                rows = row_gradients(instance, preferring(sample, j, sign))
                heard[..., j] |= heard_in(rows, heads)[..., j]
    return heard & asked


def seen_by(instance: Instance, sample: Sample) -> Tensor:
    """Bool (B, H, L, S): what mask and pattern leave open."""
    length, keys = sample.lengths
    batch, heads = sample.q.shape[:2]
    keep = torch.ones(batch, heads, length, keys, dtype=torch.bool)
    for closed in (
        sample.mask.keep(length, keys, batch, heads),
        instance.pattern(length, keys),
    ):
        keep = keep if closed is None else keep & closed
    return keep


@proves(
    "Whatever comes later may change, even a hundredfold, without changing an output.",
    causes=LEAKS,
    claim="masks (causal)",
)
def check_causality_by_perturbation(
    subject: Subject, shape: Shape = SQUARE, parts: tuple[Part, ...] = ()
) -> None:
    shape = subject.fit(shape)
    sample, instance = causal_sample(subject, shape, parts), subject.at(shape)
    before = instance(sample)
    length, keys = sample.lengths
    for t in sorted({0, length // 2, length - 2} & set(range(length))):
        for louder in (1.0, 10.0, 100.0):

            def later(name: str, x: Tensor, t: int = t, louder: float = louder) -> Tensor:
                first = t + 1 if name == "q" else t + 1 + keys - length
                noise = normal(*x.shape, seed=41 + len(name), std=louder).to(x.dtype)
                return torch.cat([x[:, :, :first], noise[:, :, first:]], dim=2)

            changed = sample.having(**{n: later(n, x) for n, x in sample.leaves().items()})
            compare(
                f"the output up to query {t}, after everything later became noise of size "
                f"{louder:g}",
                instance(changed)[:, :, : t + 1],
                before[:, :, : t + 1],
                tolerance=output_tolerance(sample),
                given=sample.describe(),
            )


@proves(
    "With fewer queries than keys the queries are the last: query i sees keys up to i + S - L.",
    causes=(
        "tril(L, S), or torch's is_causal, which align at the first key",
        "positions counted from the chunk's start in place of the sequence's",
    ),
    claim="masks (causal), unequal_lengths",
)
def check_causal_alignment(subject: Subject, queries: int, keys: int) -> None:
    shape = Shape(name="", batch=3, queries=queries, keys=keys, value_dim=6)
    if queries > keys:
        _more_queries_raise(subject, subject.fit(shape))
        return
    shape = subject.fit(shape)
    whole = subject.fit(shape.of(queries=shape.keys))
    sample = causal_sample(subject, whole)
    tail = sample.having(q=sample.q[:, :, whole.keys - shape.queries :])
    tail = tail.masked(causal_sample(subject, shape).mask)
    instance = subject.at(shape)
    compare(
        "the output of the last queries alone, against theirs among all",
        instance(tail),
        instance(sample)[:, :, whole.keys - shape.queries :],
        tolerance=output_tolerance(sample),
        given=tail.describe(),
    )
    if subject.has_definition:
        against_definition(instance, tail)


def _more_queries_raise(subject: Subject, shape: Shape) -> None:
    sample = subject.draw(shape.of(queries=shape.keys))
    sample = sample.having(q=torch.cat([sample.q, sample.q], dim=2)).masked(Mask.causal())
    must_raise(
        lambda: subject.at(shape).raw(sample),
        PolyattnError,
        asked="L > S under a causal mask",
        expected="MaskError",
        given=sample.describe(),
    )


@proves(
    "The first t outputs are those of the first t positions alone, for every t.",
    causes=(
        "a scale or normaliser that depends on the length",
        "causality by block, or padding to a block that leaks",
        "a random pattern drawn for a length",
    ),
    claim="masks (causal)",
)
def check_prefix_consistency(subject: Subject, shape: Shape, parts: tuple[Part, ...] = ()) -> None:
    shape = subject.fit(shape)
    drawn, instance = subject.draw(shape), subject.at(shape)
    sample = drawn.masked(drawn.mask & combine(("causal", *parts), shape))
    whole = instance(sample)
    step = subject.capabilities.lengths.multiple_of
    least = subject.capabilities.lengths.at_least
    for t in sorted({1, 2, 3, 7, 16, 31, 33, 64, 65, 127, 128, 129, shape.keys - 1}):
        if not max(1, least) <= t < shape.keys or t % step:
            continue
        fewer = shape.of(queries=t, keys=t)
        short = sample.positions(slice(0, t)).masked(
            needed(subject.capabilities, fewer) & combine(("causal", *parts), fewer)
        )
        compare(
            f"the first {t} of {shape.keys} outputs, against {t} positions alone",
            whole[:, :, :t],
            instance(short),
            tolerance=output_tolerance(sample),
            given=sample.describe(),
        )
