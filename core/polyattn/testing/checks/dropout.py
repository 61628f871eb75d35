"""K. Dropout in the backward pass: the pattern of the forward one, computed again or not."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError, gradcheck
from torch.utils.checkpoint import checkpoint

from polyattn.contract import SequenceAttention
from polyattn.testing.results import Mismatch, Seen, proves
from polyattn.testing.subjects.sequence import blaming, fixed_gradient, gradients
from polyattn.testing.subjects.variant import VariantSubject
from polyattn.testing.tools.cases import SQUARE, TINY, Sample, Shape
from polyattn.testing.tools.numerics import compare, need_tensor

DRAWS = 500


def _training(subject: VariantSubject, shape: Shape, probability: float) -> SequenceAttention:
    options = {"dropout": probability} if probability else {}
    with blaming(f"dropout {probability:g}"):
        return subject.with_options(shape.sizes, **options).to(subject.dtype).train()


@proves(
    "With dropout the gradients are those of finite differences, for the same weights dropped.",
    causes=(
        "a backward pass that draws a pattern of its own",
        "a backward pass that forgets to divide by 1 - p",
        "weights dropped after the values were multiplied, or before the softmax",
    ),
    claim="dropout",
)
def check_dropout_gradient(subject: VariantSubject, probability: float) -> None:
    shape = subject.fit(TINY)
    sample = subject.draw(shape, dtype=torch.float64)
    module = _training(subject, shape, probability)
    names = list(sample.leaves())
    given = f"{sample.describe()}, dropout {probability:g}, one seed"

    def out(*tensors: Tensor) -> Tensor:
        torch.manual_seed(3)
        x = sample.having(**dict(zip(names, tensors, strict=True)))
        got = module(x.q, x.k, x.v, x.mask, x.inputs)
        assert isinstance(got, Tensor)
        return got

    leaves = [x.clone().requires_grad_() for x in sample.leaves().values()]
    with blaming(given):
        try:
            gradcheck(out, leaves)
        except GradcheckError as error:
            what = " ".join(str(error).split())[:300]
            raise Mismatch(Seen(what=what, given=given)) from error


@proves(
    "Checkpointed, so that the backward pass computes it again, it gives the same for the same "
    "seed: output and gradients.",
    causes=(
        "dropout by a generator of its own, which checkpointing does not put back",
        "something counted or remembered from call to call",
        "a seed that is read outside of the call",
    ),
)
def check_checkpointing(subject: VariantSubject, probability: float) -> None:
    shape = subject.fit(SQUARE)
    sample = subject.draw(shape)
    given = f"{sample.describe()}, dropout {probability:g}, one seed"
    plain = _step(_training(subject, shape, probability), sample, given, _call)
    again = _step(_training(subject, shape, probability), sample, given, _checkpointed)
    for name, want in plain.items():
        compare(f"the {name}, checkpointed", again[name], want, tolerance=0.0, given=given)


Way = Callable[[SequenceAttention, Sample], object]


def _call(module: SequenceAttention, x: Sample) -> object:
    return module(x.q, x.k, x.v, x.mask, x.inputs)


def _checkpointed(module: SequenceAttention, x: Sample) -> object:
    return checkpoint(module, x.q, x.k, x.v, x.mask, x.inputs, use_reentrant=False)


def _step(module: SequenceAttention, sample: Sample, given: str, way: Way) -> dict[str, Tensor]:
    """The output and the gradients of one training step, after another one before it."""
    found: dict[str, Tensor] = {}
    for seed in (0, 1):
        fresh = sample.each(lambda x: x.detach().clone().requires_grad_())
        leaves = {**fresh.leaves(), **dict(module.named_parameters())}
        with blaming(given):
            torch.manual_seed(seed)
            out = need_tensor("the output", way(module, fresh), given)
            torch.manual_seed(seed + 10)
            grads = gradients(out, leaves, fixed_gradient(out).to(out.dtype))
        found = {"output": out.detach()}
        found |= {f"gradient of {name}": x.clone() for name, x in grads.items()}
    return found


@proves(
    "Dropout drops the share that is asked for: outputs scatter about their mean as p / (1 - p) "
    "says, three times as much for 0.5 as for 0.25.",
    causes=(
        "a probability that is not handed on: dropout(weights) drops one half whatever was asked",
        "the probability of keeping taken for that of dropping",
        "dropout twice over, or on something else as well",
    ),
    claim="dropout",
)
def check_dropout_share(subject: VariantSubject, low: float, high: float) -> None:
    shape = subject.fit(TINY)
    sample = subject.draw(shape)
    given = f"{sample.describe()}, dropout {low:g} and {high:g}, {DRAWS} draws each"
    variances = []
    for probability in (low, high):
        module = _training(subject, shape, probability)
        torch.manual_seed(5)
        with blaming(given), torch.no_grad():
            draws = [need_tensor("the output", _call(module, sample), given) for _ in range(DRAWS)]
        variances.append(float(torch.stack(draws).double().var(0).sum()))
    # The variance of a sum of independent weights, each dropped by itself.
    asked = (high / (1 - high)) / (low / (1 - low))
    found = variances[1] / variances[0] if variances[0] else math.inf
    # 500 draws tell a variance to a tenth; a probability that is not read gives a ratio of 1.
    if not asked / 1.6 < found < asked * 1.6:
        what = (
            f"the output's variance in training is {found:.3g} times as large for dropout "
            f"{high:g} as for {low:g}, expected {asked:.3g} times"
        )
        raise Mismatch(Seen(what=what, given=given))
