"""G. Local attention: wide windows, sequences moved along, more queries than keys, patterns."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from polyattn.capabilities import Part, Refusal
from polyattn.errors import ConfigError, PolyattnError, Unsupported
from polyattn.mask import Mask
from polyattn.testing.checks.causality import (
    heard_in,
    heard_where_preferred,
    row_gradients,
    seen_by,
)
from polyattn.testing.results import Mismatch, Seen, proves
from polyattn.testing.subjects.sequence import Subject, blaming
from polyattn.testing.subjects.variant import VariantSubject, configured_softmax
from polyattn.testing.tools.cases import Sample, Shape, shape_of
from polyattn.testing.tools.compare import output_tolerance
from polyattn.testing.tools.masks import slopes
from polyattn.testing.tools.numerics import VALUE_FLOAT64, compare, need_finite, need_tensor
from polyattn.testing.tools.raising import must_raise

LENGTH = 29


def of_length(length: int, **sizes: int) -> Shape:
    return Shape(name="", queries=length, keys=length, **sizes)


@proves(
    "A window as wide as the sequence changes nothing.",
    causes=(
        "a window of W read as W - 1 keys, or cut at half of it",
        "chunks of the window's size whose last part is dropped",
        "wide windows taken for no window, and causality with them",
    ),
    claim="masks (window)",
)
def check_window_full_equals_dense(subject: Subject, by: str, causal: bool = False) -> None:
    """by: ``mask``, against the call without it; ``options``, against softmax over everything.

    causal: by a causal mask, or as a window that reaches back only.
    """
    shape = subject.fit(of_length(LENGTH))
    sample = subject.draw(shape)
    seen = sample.masked(sample.mask & Mask.causal()) if causal else sample
    wide = shape.keys - 1, 0 if causal else shape.keys - 1
    if by == "mask":
        sample = seen
        instance = subject.at(shape)
        compare(
            f"the output for a window of {wide}, against that for none",
            instance(sample.masked(sample.mask & Mask.window(*wide))),
            instance(sample),
            tolerance=output_tolerance(sample),
            given=sample.describe(),
        )
        return
    assert isinstance(subject, VariantSubject)
    want = configured_softmax(subject.config, seen)
    for more in (0, 1, 300):
        sides = wide[0] + more, wide[1] + (more if wide[1] else 0)
        given = f"{sample.describe()}, built with left={sides[0]}, right={sides[1]}"
        got = _with_window(subject, sides, sample, given)
        told = "the output for a window over everything"
        compare(told, got, want, tolerance=VALUE_FLOAT64, given=given)


def _with_window(
    subject: VariantSubject, sides: tuple[int, int], sample: Sample, given: str
) -> Tensor:
    """Raises: Unsupported where its options allow no such window."""
    sizes = shape_of(sample).sizes
    with blaming(given):
        try:
            module = subject.with_options(sizes, left=sides[0], right=sides[1])
        except ConfigError as error:
            refusal = Refusal("left, right", sides, "other windows", str(error))
            raise Unsupported(subject.name, [refusal]) from error
        module = module.to(sample.dtype).eval()
        out = module(sample.q, sample.k, sample.v, sample.mask, sample.inputs)
    return need_tensor("the output", out, given)


def band(length: int, left: int, right: int) -> Tensor:
    """Bool (L, L): the keys from ``left`` before a query to ``right`` after it."""
    distance = torch.arange(length) - torch.arange(length)[:, None]
    return (distance >= -left) & (distance <= right)


@proves(
    "A sequence moved along gives outputs moved along, away from its ends.",
    causes=(
        "blocks laid from position 0, whose borders a window does not cross",
        "a window rounded to whole blocks",
        "a position that enters the logits",
    ),
    claim="masks (window)",
)
def check_shift_equivariance(subject: Subject, left: int, right: int, by: str) -> None:
    shape = subject.fit(of_length(2 * (left + right) + 41, batch=1))
    sample, instance = subject.draw(shape), subject.at(shape)
    if by == "mask":
        sample = sample.masked(sample.mask.without("window") & Mask.window(left, right))
    before = instance(sample)
    for shift in (1, 3, 8, 17):
        after = instance(sample.each(lambda x, shift=shift: x.roll(shift, dims=2)))
        compare(
            f"the output {left} tokens from the start and {right} from the end, moved by {shift}",
            after[:, :, left + shift : shape.keys - right],
            before[:, :, left : shape.keys - right - shift],
            tolerance=output_tolerance(sample),
            given=f"{sample.describe()}, window {left}, {right}",
        )


POSITIONED: Mapping[Part, Callable[[Shape], Mask]] = {
    "window": lambda shape: Mask.window(2, 1),
    "alibi": lambda shape: Mask.alibi(slopes(shape.heads)),
    "segments": lambda shape: Mask.segments(torch.zeros(shape.batch, shape.keys).long()),
}
"""Masks that count positions, of which the queries are the last L of S."""


@proves(
    "With more queries than keys, a mask that counts positions raises: some queries have none.",
    causes=(
        "forward() overridden, so that the base class checks nothing",
        "a part of the mask that is dropped where it does not fit",
    ),
    claim="masks (window, alibi, segments)",
)
def check_more_queries_raise(subject: Subject, part: Part) -> None:
    shape = subject.fit(Shape(name="", queries=8, keys=5))
    sample = subject.draw(shape.of(queries=shape.keys))
    longer = torch.cat([sample.q, sample.q], dim=2)
    mask = POSITIONED[part](shape)
    mask = mask & Mask.causal() if "causal" in subject.capabilities.requires else mask
    sample = sample.having(q=longer).masked(mask)
    must_raise(
        lambda: subject.at(shape).raw(sample),
        PolyattnError,
        asked=f"L > S under {' and '.join(sorted(mask.parts))}",
        expected="MaskError",
        given=sample.describe(),
    )


@proves(
    "What is seen is the declared pattern, head by head; no row of it is empty, and with a state "
    "a longer sequence does not change it.",
    causes=(
        "a pattern built for another length, or aligned at the first key",
        "one pattern used for all heads, or heads in another order",
        "random blocks drawn anew for each length",
        "a row whose only keys lie in the future",
    ),
    claim="pattern()",
)
def check_declared_pattern(subject: Subject, queries: int, keys: int) -> None:
    shape = subject.fit(Shape(name="", batch=1, heads=4, queries=queries, keys=keys))
    sample, instance = subject.draw(shape), subject.at(shape)
    claims, given = subject.capabilities, sample.describe()
    with blaming(given):
        declared = instance.pattern(shape.queries, shape.keys)
    assert declared is not None
    if claims.state != "none":
        declared = declared & torch.ones(declared.shape[-2:]).tril(keys - queries).bool()
        _grows(subject, shape, declared)
    if not bool(declared.any(-1).all()):
        rows = (~declared.any(-1)).nonzero().tolist()
        raise Mismatch(Seen(what=f"the pattern is empty in the rows {rows}", given=given))
    seen = seen_by(instance, sample)
    rows = row_gradients(instance, sample)
    for i, grads in enumerate(rows):
        need_finite(f"the gradient of output {i} to v", grads["v"], given)
    heard = heard_in(rows, shape.heads)
    if not subject.hears_all:
        heard |= heard_where_preferred(instance, sample, seen & ~heard)
    for i in range(shape.queries):
        found = heard[0, :, i]
        wrong = found != seen[0, :, i]
        if bool(wrong.any()):
            head, j = (int(x) for x in wrong.nonzero()[0])
            verb = "sees" if found[head, j] else "does not see"
            what = f"output {i} of head {head} {verb} value {j}, against the declared pattern"
            raise Mismatch(Seen(what=what, given=given))


def _grows(subject: Subject, shape: Shape, whole: Tensor) -> None:
    """The pattern of the first t positions is the beginning of the whole one."""
    if shape.queries != shape.keys:
        return
    for t in (1, 2, shape.keys // 2, shape.keys - 1):
        short = subject.fit(shape.of(queries=t, keys=t))
        part = subject.at(short).pattern(short.queries, short.keys)
        assert part is not None
        n = short.keys
        causal = torch.ones(n, n).tril().bool()
        if n < shape.keys and not torch.equal(part & causal, whole[..., :n, :n] & causal):
            what = f"the pattern of {n} positions is not the beginning of that of {shape.keys}"
            raise Mismatch(Seen(what=what))
