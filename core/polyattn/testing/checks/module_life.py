"""N. Whole modules and language models: training, saving and copying."""

from __future__ import annotations

import contextlib
import copy
import io
import pickle
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor, nn

from polyattn.testing.planned import Trait, having
from polyattn.testing.results import Mismatch, Seen, proves
from polyattn.testing.subjects.networks import (
    Network,
    described,
    seed_all,
)
from polyattn.testing.subjects.sequence import blaming, fixed_gradient
from polyattn.testing.subjects.steps import agree, parameters_of, same_step, step
from polyattn.testing.tools.numerics import compare_bits, need_finite

TRIES = 16
"""Steps of training in which each parameter is to be reached: layers that are dropped at random,
and experts that are chosen by what comes in, rest in some of them."""


@having(Trait.COMPARES_NOTHING)
@proves(
    "In training every parameter gets a gradient, at the latest with other inputs and another "
    "seed, and each gradient is finite.",
    causes=(
        "a layer that is built and not used, which stops distributed training",
        "a parameter that is read through .data or detach()",
        "a parameter made again in forward",
    ),
)
def check_module_parameters_get_grad(subject: Network) -> None:
    running, length = subject.build(), subject.fit(6)
    silence(running.module)
    running.module.train()
    for seed in range(TRIES):
        x = subject.draw(2, length, seed=seed)
        given = described(x)
        seed_all(seed)
        # Inside a network x comes from other layers, and requires a gradient.
        out = running(x.requires_grad_(x.is_floating_point()))
        with blaming(given):
            torch.autograd.backward(out, fixed_gradient(out).to(out.dtype))
        for name, parameter in parameters_of(running):
            if parameter.grad is not None:
                need_finite(f"the gradient of {name}", parameter.grad, given)
        without = [name for name, parameter in parameters_of(running) if parameter.grad is None]
        if not without:
            return
    more = f" and {len(without) - 4} more" if without[4:] else ""
    what = f"no gradient reaches {', '.join(without[:4])}{more}, in {TRIES} steps of other inputs"
    raise Mismatch(Seen(what=what, given=given))


@proves(
    "Saved and loaded into another one, it gives the same; the keys do not depend on what it has "
    "seen.",
    causes=(
        "a mask or a table kept as a buffer that grows with the length",
        "random numbers kept outside the state",
        "something computed from the parameters once and kept",
    ),
)
def check_module_state_dict_roundtrip(subject: Network) -> None:
    running, x = subject.build(), subject.draw(2, subject.fit(6))
    given, fresh = described(x), _shapes(running.module)
    running.quiet(subject.draw(2, subject.fit(19)))
    before = running.quiet(x)
    changed = sorted(fresh.items() ^ _shapes(running.module).items())
    if changed:
        what = f"the saved state depends on the calls made: {changed[:4]}"
        raise Mismatch(Seen(what=what, given=given))
    for used in (False, True):
        other = subject.build(seed=1 + used)
        if used:
            other.quiet(x)
        with blaming("torch.save and load_state_dict(strict=True)"):
            saved = io.BytesIO()
            torch.save(running.module.state_dict(), saved)
            saved.seek(0)
            other.module.load_state_dict(torch.load(saved, weights_only=True), strict=True)
        told = f"the output after loading into {'one that has run' if used else 'a fresh one'}"
        compare_bits(told, other.quiet(x), before, given=given)


def _shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(x.shape) for name, x in module.state_dict().items() if x is not None}


def _pickled(module: nn.Module) -> nn.Module:
    found: nn.Module = pickle.loads(pickle.dumps(module))
    return found


COPIES: Mapping[str, Callable[[nn.Module], nn.Module]] = {
    "deepcopy": copy.deepcopy,
    "pickle": _pickled,
}


@proves(
    "After forward and backward it can be copied and pickled; the copy gives the same, and shares "
    "nothing with it.",
    causes=(
        "a tensor of the graph, such as the last weights, kept on the module",
        "a lambda, a generator or a lock among the attributes",
        "a method of the original kept as a value: the copy calls the original",
    ),
)
def check_module_deepcopy_pickle(subject: Network, how: str) -> None:
    running, x = subject.build(), subject.draw(2, subject.fit(6))
    given = f"{described(x)}, {how} after forward and backward"
    out = running(x.clone().requires_grad_(x.is_floating_point()))
    with blaming(given):
        if out.requires_grad:
            torch.autograd.backward(out, fixed_gradient(out).to(out.dtype))
        # Before any other call, which would replace what this one left.
        twin = running.of(COPIES[how](running.module))
    before = running.quiet(x)
    compare_bits("the output of the copy", twin.quiet(x), before, given=given)
    told = "the output of the copy, once the original's parameters and buffers were changed,"
    with _other_state(running.module):
        compare_bits(told, twin.quiet(x), before, given=given)


@contextlib.contextmanager
def _other_state(module: nn.Module) -> Iterator[None]:
    """Meanwhile every element of every parameter and buffer is another one.

    They are put back: a table may be one that all modules of its class have.
    """
    with torch.no_grad():
        held = [_written_once(x) for x in (*module.parameters(), *module.buffers())]
        before = [x.clone() for x in held]
        for x in held:
            numbers = x.is_floating_point() or x.is_complex()
            x.copy_(x * -0.5 + 0.25 if numbers else x == 0)
    try:
        yield
    finally:
        with torch.no_grad():
            for x, was in zip(held, before, strict=True):
                x.copy_(was)


def _written_once(x: Tensor) -> Tensor:
    """A view of x in which no dimension is expanded."""
    return x[tuple(slice(0, 1) if step == 0 else slice(None) for step in x.stride())]


@proves(
    "After a call under inference mode it trains as a fresh one does.",
    causes=("a table, a mask or a cache made under inference mode, and kept",),
)
def check_module_inference_mode_then_train(subject: Network) -> None:
    running, x = subject.build(), subject.draw(2, subject.fit(6))
    given = f"{described(x)}, after a call under inference mode"
    with torch.inference_mode():
        running(x.clone())
    with blaming(given):
        got = step(running, x)
    same_step(got, step(subject.build(), x), given=given)


@proves(
    "Without dropout it gives in training what it gives in evaluation.",
    causes=(
        "a mask, a scale or a branch that hangs on self.training",
        "weights that are merged or rounded for evaluation",
    ),
)
def check_module_train_equals_eval(subject: Network) -> None:
    running, x = subject.build(), subject.draw(2, subject.fit(6))
    want = running.quiet(x)
    silence(running.module)
    running.module.train()
    given = f"{described(x)}, in training, dropout set to 0"
    agree("the output in training, against evaluation,", running.quiet(x), want, given=given)


def silence(module: nn.Module) -> None:
    """Set every dropout that can be seen to 0."""
    for part in module.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd):
            part.p = 0.0
        for name, value in list(vars(part).items()):
            if "drop" in name and isinstance(value, float):
                setattr(part, name, 0.0)


@proves(
    "Asking for the weights changes nothing of the output.",
    causes=(
        "another path with another scale or mask where the weights are wanted",
        "an output that is replaced, or moved in its tuple",
    ),
)
def check_module_weights_change_nothing(subject: Network) -> None:
    flag = subject.weights_flag
    assert flag is not None, "asked only where there is such a flag"
    running, x = subject.build(), subject.draw(2, subject.fit(6))
    given = f"{described(x)}, {flag}"
    without = running.quiet(x, **{flag: False})
    agree(f"the output with {flag}=True", running.quiet(x, **{flag: True}), without, given=given)
    if subject.manner.padding is not None:
        keep = torch.arange(x.shape[1]) < torch.tensor([[x.shape[1]], [max(1, x.shape[1] - 2)]])
        outs = [running.quiet(x, keep=keep, **{flag: on}) for on in (True, False)]
        told = f"the output at real positions with {flag}=True and padding"
        agree(told, outs[0][keep], outs[1][keep], given=given)
