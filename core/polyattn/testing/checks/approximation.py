"""H. Approximations: they get better by the option that they name, and are exact at their limit."""

from __future__ import annotations

import statistics

import torch
from torch import Tensor

from polyattn.contract import SequenceAttention
from polyattn.testing.checks.life_cycle import module_of
from polyattn.testing.results import Mismatch, Seen, proves
from polyattn.testing.subjects.sequence import Outcome, blaming, run
from polyattn.testing.subjects.variant import VariantSubject, configured_softmax, seeded
from polyattn.testing.tools.cases import SQUARE, Sample, Shape
from polyattn.testing.tools.numerics import compare, largest, value_tolerance

COARSE, FINE = 64, 4096
"""Two values of the option that an approximation improves with.

What an estimate errs by from draw to draw falls as 1 / sqrt(count), to 1/8 from one to the other; a
bias stays. With a bias b and a spread s at ``COARSE`` the errors are sqrt(b² + s²) and
sqrt(b² + s²/64): at most half as large only while b < 0.56 s. So ``HALF`` lets pass whatever falls
as quickly as count^(-1/6), and finds a bias of more than about half the spread. That is why
``COARSE`` is no smaller: at 16 features the spread hides the factor exp(-|x|²/2) that is left out.
"""
HALF = 0.5
SEEDS = 8
"""Draws of which the median is taken: one alone may be lucky."""
SMALL = 0.5
"""Spread of the inputs at which approximations by random features are of any use."""


def called(module: SequenceAttention, sample: Sample) -> Tensor:
    """The module's own answer."""
    out = module(sample.q, sample.k, sample.v, sample.mask, sample.inputs)
    assert isinstance(out, Tensor)
    return out


@proves(
    "It nears softmax: with 64 times as much of the option that it improves with, the error is at "
    "most half, in the median of eight draws.",
    causes=(
        "an estimate with a bias: a feature without its factor, a scale applied twice",
        "an option that does not reach the computation",
        "features that are all alike: one draw, or one seed, for all of them",
    ),
    claim="improves_with",
)
def check_approximation_improves(subject: VariantSubject) -> None:
    shape = subject.fit(SQUARE.of(queries=48, keys=48))
    name = subject.capabilities.improves_with
    if name not in type(subject.config).model_fields:
        known = sorted(type(subject.config).model_fields)
        raise Mismatch(Seen(what=f"improves_with = {name!r} is no option; options are {known}"))
    coarse, fine = (_error(subject, shape, name, count) for count in (COARSE, FINE))
    if not fine <= HALF * coarse:
        what = (
            f"the error at {name} = {FINE}, as a share of that at {name} = {COARSE}, is too large"
        )
        raise Mismatch(
            Seen(
                what=what,
                given=f"{subject.draw(shape, std=SMALL).describe()}, {SEEDS} draws",
                got=fine / coarse if coarse else float("nan"),
                expected=0.0,
                tolerance=HALF,
            )
        )


def _error(subject: VariantSubject, shape: Shape, name: str, count: int) -> float:
    """The median error, as a share of what is approximated."""
    errors = []
    for seed in range(SEEDS):
        sample = subject.draw(shape, seed=seed, std=SMALL)
        given = f"{sample.describe()}, {name} = {count}"
        config = type(subject.config)(**{**dict(subject.config), name: count})
        with blaming(given), seeded(seed), torch.no_grad():
            module = subject.factory(config, shape.sizes).to(sample.dtype).eval()
            got = called(module, sample)
        want = configured_softmax(config, sample)
        errors.append(float((got - want).norm() / want.norm()))
    return statistics.median(errors)


@proves(
    "At its limit it is softmax, within the error that is declared to be left.",
    causes=(
        "the scale: missing, or applied twice",
        "positions mixed or dropped on the way into the smaller space and out of it",
        "a limit that is named, and that at_limit() does not go to",
    ),
    claim="limit",
)
def check_exact_at_limit(subject: VariantSubject, shape: Shape) -> None:
    shape = subject.fit(shape)
    sample = subject.draw(shape)
    variant = type(subject.factory(subject.config, shape.sizes))
    with blaming(sample.describe()), seeded(0):
        found = variant.at_limit(subject.config, shape.sizes, shape.keys)
    if found is None:
        limit = subject.capabilities.limit
        what = f"the limit is {limit!r}, but at_limit() gives nothing, and no option improves it"
        raise Mismatch(Seen(what=what, given=sample.describe()))
    module, residual = found
    module = module.to(sample.dtype).eval()
    given = f"{sample.describe()}, at its limit for {shape.keys} keys"
    if not subject.backward:
        got = Outcome(called(module, sample), {})
        want = Outcome(configured_softmax(module.config, sample), {})
    else:
        with blaming(given):
            got = run(lambda asked: called(module, asked), sample, None, given)
        want = run(lambda asked: configured_softmax(module.config, asked), sample, None, given)
    left = residual * largest(sample.v)
    allowed = value_tolerance(want.out, want.out, sample.dtype) + left
    compare("the output", got.out, want.out, tolerance=allowed, given=given)
    if residual:
        return
    for name, grad in want.grads.items():
        allowed = value_tolerance(grad, grad, sample.dtype, gradient=True)
        compare(f"the gradient of {name}", got.grads[name], grad, tolerance=allowed, given=given)


@proves(
    "Random features are drawn when it is built, saved with it, and drawn again only where that is "
    "declared: in training.",
    causes=(
        "a seed of its own: every layer of a model draws the same",
        "features that are a plain attribute, and not a buffer",
        "features drawn again in evaluation, or in training without a word",
        "random features that no claim mentions: declare random_features",
    ),
    claim="random_features",
)
def check_stochastic_features(subject: VariantSubject, case: str) -> None:
    shape = subject.fit(SQUARE)
    sample = subject.draw(shape)
    with torch.no_grad():
        CASES[case](subject, shape, sample)


def _same(what: str, got: Tensor, want: Tensor, sample: Sample) -> None:
    compare(what, got, want, tolerance=0.0, given=sample.describe())


def _differ(what: str, one: Tensor, other: Tensor, sample: Sample) -> None:
    if torch.equal(one, other):
        raise Mismatch(Seen(what=what, given=sample.describe()))


def _seed(subject: VariantSubject, shape: Shape, sample: Sample) -> None:
    """The seed, and nothing else, decides."""
    outs = [subject.at(shape, seed=seed)(sample) for seed in (0, 0, 1)]
    _same("the output of two built with the same seed", outs[1], outs[0], sample)
    what = "built with another seed it gives the same: nothing in it is random"
    _differ(what, outs[2], outs[0], sample)


def _saved(subject: VariantSubject, shape: Shape, sample: Sample) -> None:
    """The features are saved and loaded."""
    one, other = subject.at(shape), subject.at(shape, seed=1)
    with blaming(sample.describe()):
        module_of(other).load_state_dict(module_of(one).state_dict())
    told = "the output of another seed, once the state was loaded"
    _same(told, other(sample), one(sample), sample)


def _training(subject: VariantSubject, shape: Shape, sample: Sample) -> None:
    """In training they stay, or are drawn again, as declared."""
    instance = subject.at(shape)
    module_of(instance).train()
    torch.manual_seed(1)
    first, second = instance(sample), instance(sample)
    if subject.capabilities.random_features == "fixed":
        _same("the output of a second call in training", second, first, sample)
        return
    what = "redrawn features are declared, and two calls in training give the same"
    _differ(what, second, first, sample)
    torch.manual_seed(1)
    _same("the output in training for the same seed again", instance(sample), first, sample)


def _undeclared(subject: VariantSubject, shape: Shape, sample: Sample) -> None:
    """Without the claim nothing but the parameters depends on the seed."""
    one, other = subject.at(shape), subject.at(shape, seed=1)
    theirs = dict(module_of(one).named_parameters())
    for name, parameter in module_of(other).named_parameters():
        parameter.copy_(theirs[name])
    told = "the output of another seed with the same parameters (random_features is not declared)"
    _same(told, other(sample), one(sample), sample)


CASES = {"seed": _seed, "saved": _saved, "training": _training, "undeclared": _undeclared}
