"""C. Independence: samples and heads know nothing of each other."""

from __future__ import annotations

import torch

from polyattn.mask import Mask
from polyattn.testing.cases import RECTANGULAR, Sample, Shape
from polyattn.testing.compare import output_tolerance
from polyattn.testing.masks import padding_keep, sample_of
from polyattn.testing.numerics import compare
from polyattn.testing.results import proves
from polyattn.testing.subject import Instance, Subject

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
    "A head depends on its own inputs alone, and heads come out in the order they went in.",
    causes=(
        "view() without the transpose between heads and length",
        "a softmax, norm or maximum over the heads",
        "heads merged or split in another order",
    ),
)
def check_head_independence_and_order(subject: Subject, shape: Shape = RECTANGULAR) -> None:
    shape = subject.fit(shape.of(heads=3))
    sample, instance = subject.draw(shape), subject.at(shape)
    before = instance(sample)
    loud = sample.each(lambda x: torch.cat([x[:, :1], x[:, 1:2] * LOUDER, x[:, 2:]], dim=1))
    after = instance(loud)
    for head in (0, 2):
        compare(
            f"the output of head {head} when only head 1 changed",
            after[:, head],
            before[:, head],
            tolerance=output_tolerance(sample),
            given=sample.describe(),
        )
    pattern = instance.pattern(*sample.lengths)
    if not instance.has_parameters and (pattern is None or pattern.dim() == 2):
        _permuted(instance, sample, before)


def _permuted(instance: Instance, sample: Sample, before: torch.Tensor) -> None:
    order = torch.tensor([2, 0, 1])
    compare(
        "the output for permuted heads",
        instance(sample.each(lambda x: x[:, order])),
        before[:, order],
        tolerance=output_tolerance(sample),
        given=sample.describe(),
    )
