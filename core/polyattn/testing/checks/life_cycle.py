"""K. Life cycle: what is saved is what is loaded, a copy is a copy, and every parameter learns."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from polyattn.errors import Unsupported
from polyattn.testing.checks.causality import causal_sample
from polyattn.testing.planned import Trait, having
from polyattn.testing.results import Mismatch, Seen, proves
from polyattn.testing.subjects.sequence import (
    Instance,
    Outcome,
    Subject,
    blaming,
    fixed_gradient,
    gradients,
)
from polyattn.testing.subjects.variant import VariantSubject, seeded
from polyattn.testing.tools.cases import SQUARE, Sample, shape_of
from polyattn.testing.tools.compare import output_tolerance, same_outcome
from polyattn.testing.tools.numerics import compare, compare_bits, need_finite


def module_of(instance: Instance) -> nn.Module:
    """The module behind an instance, where the check is asked only of what has one."""
    module = instance.module()
    assert module is not None, "only what has a module has a life to speak of"
    return module


@having(Trait.MANNERS)
@proves(
    "Saved and loaded into another instance, fresh or used, it gives the same; the keys do not "
    "depend on what it has seen.",
    causes=(
        "a table or mask kept as a buffer that grows with the length",
        "random features kept outside the state",
        "a lazy initialisation that overwrites what was loaded",
        "something computed from the parameters once and kept",
    ),
)
def check_state_dict_roundtrip(subject: Subject) -> None:
    shape = subject.fit(SQUARE)
    longer = subject.fit(SQUARE.of(queries=20, keys=20))
    sample = subject.draw(shape)
    instance = subject.at(shape)
    module = module_of(instance)
    fresh_keys = {name: tuple(x.shape) for name, x in module.state_dict().items()}
    instance(subject.draw(longer))
    before = instance(sample)
    after = {name: tuple(x.shape) for name, x in module.state_dict().items()}
    if after != fresh_keys:
        changed = sorted(fresh_keys.items() ^ after.items())
        raise Mismatch(
            Seen(
                what=f"the saved state depends on the calls made: {changed[:4]}",
                given=sample.describe(),
            )
        )
    for seed, kind in ((1, "a fresh instance"), (2, "an instance that has run")):
        other = subject.at(shape, seed=seed)
        if seed == 2:
            other(sample)
        with blaming("torch.save and load_state_dict(strict=True)"):
            saved = io.BytesIO()
            torch.save(module.state_dict(), saved)
            saved.seek(0)
            module_of(other).load_state_dict(torch.load(saved, weights_only=True), strict=True)
        told = f"the output after loading into {kind}"
        compare_bits(told, other(sample), before, given=sample.describe())


STEPS = 8


@proves(
    "After a few training steps every parameter has had a gradient, and each was finite.",
    causes=(
        "a parameter that no path reaches under these options: do not make it",
        "a parameter that is read through .data or detach()",
        "a parameter made again in forward, so that the one registered is not the one used",
    ),
)
def check_all_parameters_get_grad(subject: Subject) -> None:
    """Some steps, of other inputs and seeds: an expert or a layer may rest in one of them."""
    shape = subject.fit(SQUARE)
    instance = subject.at(shape)
    module = module_of(instance).train()
    learns = {name: x for name, x in module.named_parameters() if x.requires_grad}
    unreached = dict(learns)
    for seed in range(STEPS):
        sample = subject.draw(shape, seed=seed)
        module.zero_grad(set_to_none=True)
        with seeded(seed):
            out = instance(sample)
            with blaming(sample.describe()):
                torch.autograd.backward(out, fixed_gradient(out).to(out.dtype))
        for name, parameter in learns.items():
            if parameter.grad is not None:
                told = f"the gradient of the parameter {name}"
                need_finite(told, parameter.grad, sample.describe())
                unreached.pop(name, None)
        if not unreached:
            return
    what = f"the parameter {next(iter(unreached))} has no gradient after {STEPS} training steps"
    raise Mismatch(Seen(what=what, given=sample.describe()))


COPIES: Mapping[str, Callable[[nn.Module], nn.Module]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda module: pickle.loads(pickle.dumps(module)),
}


@proves(
    "After forward and backward it can be copied and pickled; the copy gives the same, and shares "
    "no parameter with it.",
    causes=(
        "a tensor of the graph, a lambda, a generator or a lock kept on the module",
        "a parameter that is kept a second time outside the module's own",
        "a method of the original kept as a value: the copy calls the original",
    ),
)
def check_deepcopy_pickle_after_forward(subject: VariantSubject, how: str) -> None:
    shape = subject.fit(SQUARE)
    sample, instance = subject.draw(shape), subject.at(shape)
    module, given = module_of(instance), f"{sample.describe()}, {how}"
    before = instance(sample).detach()
    if subject.backward:
        instance.run(sample)
    with blaming(given):
        twin = COPIES[how](module)
    told = "the output of the copy, against the original"
    compare_bits(told, _call(twin, sample, given), before, given=given)
    with torch.no_grad():
        for tensor in _weights(module).values():
            tensor.mul_(-0.5)
    told = "the output of the copy, once the original's parameters were changed"
    compare_bits(told, _call(twin, sample, given), before, given=given)


def _weights(module: nn.Module) -> dict[str, Tensor]:
    named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {name: x for name, x in named.items() if x.is_floating_point()}


def _call(module: Any, sample: Sample, given: str) -> Tensor:
    with blaming(given), torch.no_grad():
        out = module(sample.q, sample.k, sample.v, sample.mask, sample.inputs)
    assert isinstance(out, Tensor)
    return out


@proves(
    "After a call under inference mode it trains as a fresh instance does.",
    causes=(
        "a table, a mask or weights made under inference mode, and kept",
        "a flag set by the first call that says gradients will never be needed",
    ),
)
def check_inference_mode_then_train(subject: Subject) -> None:
    shape = subject.fit(SQUARE)
    sample, instance = subject.draw(shape), subject.at(shape)
    with torch.inference_mode():
        instance(sample)
    given = f"{sample.describe()}, after a call under inference mode"
    with blaming(given):
        got = instance.run(sample)
    same_outcome(got, subject.at(shape).run(sample), sample, given=given)


@proves(
    "A state filled under inference mode continues with gradients, or is refused in so many words.",
    causes=(
        "a tensor of the state that is saved for backward: clone it where is_inference() is true",
        "a buffer made under inference mode that is written to outside of it",
    ),
    claim="state",
)
def check_state_of_inference_mode(subject: Subject, tokens: int) -> None:
    shape = subject.fit(SQUARE)
    sample, instance = causal_sample(subject, shape), subject.at(shape)
    given = f"{sample.describe()}, 5 tokens under inference mode, then {tokens} with gradients"
    with torch.inference_mode():
        state = _prefilled(instance, sample)
    try:
        got = _continued(instance, sample, state, tokens, given)
    except Mismatch as mismatch:
        if isinstance(mismatch.__cause__, Unsupported):
            return
        raise
    with torch.no_grad():
        state = _prefilled(instance, sample)
    want = _continued(instance, sample, state, tokens, given)
    told = "the output, against that for a state filled under no_grad"
    compare(told, got.out, want.out, tolerance=output_tolerance(sample), given=given)
    same_outcome(got, want, sample, given=given)


def _prefilled(instance: Instance, sample: Sample) -> Any:
    with blaming(sample.describe()):
        state = instance.new_state(sample.q.shape[0], shape_of(sample).sizes, sample.dtype)
        chunk = sample.positions(slice(0, 5)).masked(sample.mask.without("causal"))
        return instance.extend(chunk, state)[1]


def _continued(instance: Instance, sample: Sample, state: Any, tokens: int, given: str) -> Outcome:
    chunk = sample.positions(slice(5, 5 + tokens)).masked(sample.mask.without("causal"))
    chunk = chunk.each(lambda x: x.detach().clone().requires_grad_())
    with blaming(given):
        out, _ = instance.extend(chunk, state)
        grads = gradients(out, chunk.leaves(), fixed_gradient(out).to(out.dtype))
    return Outcome(out.detach(), grads)
