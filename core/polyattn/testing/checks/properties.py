"""C. Properties that are claimed one by one: linear values, dropout."""

from __future__ import annotations

import torch
from torch import Tensor

from polyattn.capabilities import Part
from polyattn.contract import SequenceAttention
from polyattn.testing.results import Mismatch, Seen, proves
from polyattn.testing.subjects.sequence import Subject, blaming
from polyattn.testing.subjects.variant import VariantSubject
from polyattn.testing.tools.cases import RECTANGULAR, TINY, Sample, normal
from polyattn.testing.tools.compare import output_tolerance
from polyattn.testing.tools.masks import combine
from polyattn.testing.tools.numerics import compare, largest, same_tolerance


@proves(
    "The output is linear in the values: for a v + b w it is a times that for v plus b times that "
    "for w.",
    causes=(
        "a clamp, a norm or an activation on the values or on the output",
        "a constant that is added to the output",
        "values that enter the weights",
    ),
    claim="linear_in_values",
)
def check_value_linearity(subject: Subject, parts: tuple[Part, ...] = ()) -> None:
    shape = subject.fit(RECTANGULAR)
    mask = combine(sorted(subject.capabilities.requires | frozenset(parts)), shape)
    sample, instance = subject.draw(shape).masked(mask), subject.at(shape)
    other = normal(*sample.v.shape, seed=9, std=4.0).to(sample.dtype)
    a, b = 2.0, -0.625  # neither the sum nor the product is one; both exact in every dtype
    mixed = sample.having(v=a * sample.v + b * other)
    compare(
        f"the output for {a:g} v + {b:g} w",
        instance(mixed),
        a * instance(sample) + b * instance(sample.having(v=other)),
        tolerance=same_tolerance(sample.dtype, largest(mixed.v) + largest(other)),
        given=sample.describe(),
    )


DRAWS = 500


@proves(
    "Dropout is off in evaluation; in training it repeats with the seed, differs between seeds, "
    "and leaves the mean as it is.",
    causes=(
        "dropout applied whatever self.training says, or never",
        "the kept weights not divided by 1 - p, or dropout on the logits",
        "a generator of its own, which torch.manual_seed does not reach",
    ),
    claim="dropout",
)
def check_dropout_semantics(subject: VariantSubject, probability: float) -> None:
    shape = subject.fit(TINY)
    sample = subject.draw(shape)
    given = f"{sample.describe()}, dropout {probability:g}"
    with blaming(given), torch.no_grad():
        dropping = _built(subject, sample, probability)
        calm = _call(_built(subject, sample, 0.0).eval(), sample)
        told = "the output in evaluation, against that for dropout 0"
        tolerance = output_tolerance(sample)
        compare(told, _call(dropping.eval(), sample), calm, tolerance=tolerance, given=given)
        dropping.train()
        first, second = (_drawn(dropping, sample, seed) for seed in (0, 1))
        told = "the output in training, for the same seed again"
        compare(told, _drawn(dropping, sample, 0), first, tolerance=0.0, given=given)
        if torch.equal(first, second):
            what = "in training two seeds give the same: nothing is dropped, or nothing at random"
            raise Mismatch(Seen(what=what, given=given))
        torch.manual_seed(2)
        draws = torch.stack([_call(dropping, sample) for _ in range(DRAWS)]).double()
    # Six standard errors: of a dozen elements, one in a hundred million goes beyond by chance.
    allowed = 6.0 * float(draws.std(0).max()) / DRAWS**0.5 + tolerance
    told = f"the mean of {DRAWS} outputs in training, against evaluation"
    compare(told, draws.mean(0), calm.double(), tolerance=allowed, given=given)


def _built(subject: VariantSubject, sample: Sample, probability: float) -> SequenceAttention:
    sizes = subject.fit(TINY).sizes
    return subject.with_options(sizes, dropout=probability).to(sample.dtype)


def _drawn(module: SequenceAttention, sample: Sample, seed: int) -> Tensor:
    torch.manual_seed(seed)
    return _call(module, sample)


def _call(module: SequenceAttention, sample: Sample) -> Tensor:
    out = module(sample.q, sample.k, sample.v, sample.mask, sample.inputs)
    assert isinstance(out, Tensor)
    return out
