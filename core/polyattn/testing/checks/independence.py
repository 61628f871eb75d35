"""C. Independence: samples and heads know nothing of each other."""

from __future__ import annotations

import torch
from torch import Tensor

from polyattn.mask import Mask
from polyattn.testing.results import Mismatch, Seen, proves
from polyattn.testing.subjects.sequence import Instance, Subject
from polyattn.testing.tools.cases import RECTANGULAR, Sample, Shape
from polyattn.testing.tools.compare import against_definition, output_tolerance
from polyattn.testing.tools.masks import padding_keep, sample_of
from polyattn.testing.tools.numerics import compare, largest, need_finite

LOUDER = 30.0


@proves(
    "A sample alone gives what it gives in a batch, whatever the others hold.",
    causes=(
        "a maximum, mean or norm taken over the batch",
        "batch and length confused",
        "masks of one sample used for another: repeat in place of repeat_interleave",
    ),
)
def check_batch_independence(subject: Subject, shape: Shape, padded: bool = False) -> None:
    shape = subject.fit(shape)
    if padded:
        shape = shape.of(queries=shape.keys)
    sample = subject.draw(shape)
    if padded:
        sample = sample.masked(sample.mask & Mask.padding(padding_keep(shape)))
    together = subject.at(shape)(sample)
    for b in range(shape.batch):
        alone = sample.rows(slice(b, b + 1)).masked(sample_of(sample.mask, shape.batch, b))
        compare(
            f"the output of sample {b} in the batch, against the sample alone",
            together[b : b + 1],
            subject.at(shape)(alone),
            tolerance=output_tolerance(sample),
            given=sample.describe(),
        )
    louder = sample.each(lambda x: torch.cat([x[:1], x[1:] * LOUDER]))
    compare(
        f"the output of sample 0 when the others are {LOUDER:g} times as large",
        subject.at(shape)(louder)[:1],
        together[:1],
        tolerance=output_tolerance(sample),
        given=sample.describe(),
    )


@proves(
    "A head depends on its own inputs alone, and heads come out in the order they went in; where "
    "the definition mixes heads, they are mixed as it says.",
    causes=(
        "view() without the transpose between heads and length",
        "a softmax, norm or maximum over the heads",
        "heads merged or split in another order",
    ),
)
def check_head_independence_and_order(subject: Subject, shape: Shape = RECTANGULAR) -> None:
    shape = subject.fit(shape.of(heads=HEADS))
    sample, instance = subject.draw(shape), subject.at(shape)
    before = instance(sample)
    given, allowed = sample.describe(), output_tolerance(sample)
    if _mixed_by_definition(subject, instance, sample):
        for changed in range(HEADS):
            marked, told = _with_one_marked(sample, changed), f"head {changed} marked"
            against_definition(instance, marked, gradients=False, note=told)
        return
    for changed in range(HEADS):
        after = instance(_with_one_marked(sample, changed))
        for head in range(HEADS):
            got, was = after[:, head], before[:, head]
            told = f"the output of head {head} when only head {changed} changed"
            if head != changed:
                compare(told, got, was, tolerance=allowed, given=given)
                continue
            need_finite(told, got, given)
            if largest(got - was) <= allowed:
                what = f"the output of head {head} is the same when its queries, keys and values"
                raise Mismatch(Seen(what=f"{what} are others", given=given))
    _permuted(subject, instance, sample, before)


HEADS = 3


def _mixed_by_definition(subject: Subject, instance: Instance, sample: Sample) -> bool:
    """Whether a head hears another by the definition, as talking heads do."""
    if not subject.has_definition or subject.softmax:
        return False
    with torch.no_grad():
        before = instance.definition(sample)
        after = instance.definition(_with_one_marked(sample, 0))
    return largest(after[:, 1:] - before[:, 1:]) > output_tolerance(sample)


def _with_one_marked(sample: Sample, head: int) -> Sample:
    """All that belongs to one head is louder; its values have the other sign besides."""

    def marked(name: str, x: Tensor) -> Tensor:
        louder = -LOUDER if name == "v" else LOUDER
        return torch.cat([x[:, :head], x[:, head : head + 1] * louder, x[:, head + 1 :]], dim=1)

    return sample.having(**{name: marked(name, x) for name, x in sample.leaves().items()})


def _permuted(subject: Subject, instance: Instance, sample: Sample, before: Tensor) -> None:
    """Asked only where the definition has no constant, pattern or parameter of each head."""
    if not subject.has_definition:
        return
    order, allowed = torch.tensor([2, 0, 1]), output_tolerance(sample)
    permuted = sample.each(lambda x: x[:, order] if x.shape[1] == HEADS else x)
    with torch.no_grad():
        defined = instance.definition(sample)[:, order]
        unlike = defined - instance.definition(permuted)
    if not bool(unlike.isfinite().all()) or largest(unlike) > allowed:
        return
    told, given = "the output for permuted heads", sample.describe()
    compare(told, instance(permuted), before[:, order], tolerance=allowed, given=given)
