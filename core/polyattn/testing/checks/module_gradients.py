"""N. Whole modules: gradients against finite differences, and where these say nothing."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

import torch
from torch import Tensor

from polyattn.testing.results import Mismatch, Seen, proves
from polyattn.testing.subjects.networks import ModuleSubject, Running, described
from polyattn.testing.subjects.sequence import fixed_gradient
from polyattn.testing.subjects.steps import parameters_of, step
from polyattn.testing.tools.cases import normal
from polyattn.testing.tools.numerics import compare, largest

STEPS = (1e-4, 1e-6)


@dataclasses.dataclass(frozen=True)
class Asked:
    """One tensor, its gradient, and what both say of a step along a random direction."""

    told: str
    tensor: Tensor
    grad: Tensor
    along: Tensor
    """The slope by the gradient."""
    near: Tensor
    """The slope by finite differences."""
    allowed: float

    @property
    def agrees(self) -> bool:
        """What is no number disagrees."""
        return bool((self.along - self.near).abs() <= self.allowed)


@proves(
    "The gradients are those of finite differences, in float64, but for those that are handed "
    "straight through a rounding.",
    causes=(
        "a backward pass written by hand that lacks one path",
        "a detach(), .data or no_grad() on the way",
        "a rounding, a sign or an argmax in the middle",
    ),
)
def check_module_gradcheck(subject: ModuleSubject) -> None:
    running, x = _drawn(subject)
    for asked in _asked(running, x):
        if not asked.agrees and straight_through(running, x, asked):
            continue
        told = f"{asked.told}, along a random direction,"
        given = described(x)
        compare(told, asked.along, asked.near, tolerance=asked.allowed, given=given)


@proves(
    "The gradients are those of finite differences in all tensors: none of them is rounded, and "
    "handed its gradient as if it were not.",
    causes=("a straight-through estimator, as quantised training has it: w + (q - w).detach()",),
)
def check_module_nothing_straight_through(subject: ModuleSubject) -> None:
    running, x = _drawn(subject)
    given = described(x)
    for asked in _asked(running, x):
        if not asked.agrees and straight_through(running, x, asked):
            what = f"the output goes in jumps, and {asked.told} is {float(asked.along):.3g} along "
            what += f"a direction, where between the jumps the slope is {float(asked.near):.3g}"
            raise Mismatch(Seen(what=what, given=given))


def _drawn(subject: ModuleSubject) -> tuple[Running, Tensor]:
    running = subject.build(dtype=torch.float64)
    return running, subject.draw(1, subject.fit(3)).double()


def _asked(running: Running, x: Tensor) -> Iterator[Asked]:
    """x, then each parameter."""
    got = step(running, x)
    assert got.x is not None, "x holds floats"
    tensors = [("the gradient of x", x, got.x)]
    named = dict(parameters_of(running)) if got.parameters else {}
    for name, grad in got.parameters.items():
        tensors.append((f"the gradient of the parameter {name}", named[name].detach(), grad))
    rounding = 1e-8 * float(got.out.abs().sum())
    for number, (told, tensor, grad) in enumerate(tensors):
        direction = normal(*tensor.shape, seed=700 + number) / max(1, tensor.numel()) ** 0.5
        along = (grad * direction).sum().reshape(1)
        # A kink (of a ReLU) that lies within the greater step lies outside the smaller one.
        slopes = [_slope(running, x, tensor, direction, size) for size in STEPS]
        near = min(slopes, key=lambda slope: float((slope - along).abs()))
        usual = float(grad.norm()) / max(1, tensor.numel()) ** 0.5
        allowed = 1e-4 * max(usual, float(near.abs())) + rounding
        yield Asked(told, tensor, grad, along, near, allowed)


def _slope(running: Running, x: Tensor, tensor: Tensor, direction: Tensor, size: float) -> Tensor:
    """By how much the weighted sum of the outputs grows along a direction of one tensor."""
    ends = []
    for end in (size, -size):
        out = _moved(running, x, tensor, direction * end)
        ends.append((out * fixed_gradient(out)).sum())
    return ((ends[0] - ends[1]) / (2 * size)).reshape(1)


def _moved(running: Running, x: Tensor, tensor: Tensor, step: Tensor) -> Tensor:
    """The output after a step of one tensor, which is put back."""
    before = tensor.clone()
    tensor.copy_(before + step)
    try:
        return running.quiet(x)
    finally:
        tensor.copy_(before)


DIRECTIONS = 6
FLAT = 0.5
"""Beside the slopes by the gradient: what is left between jumps comes from the scale of a rounding
alone, in which the gradient of a rounding that hands it through has no greater part."""


def straight_through(running: Running, x: Tensor, asked: Asked) -> bool:
    """Whether the output goes in jumps where this tensor moves, and hardly moves between them.

    A wrong gradient of what is smooth between its jumps, as where the greatest logits are chosen,
    is no such thing.
    """
    tensor, by_gradient, by_differences = asked.tensor, 0.0, 0.0
    first = normal(*tensor.shape, seed=750)
    for number in range(DIRECTIONS):
        direction = normal(*tensor.shape, seed=750 + number)
        by_gradient += float((asked.grad * direction).sum()) ** 2
        by_differences += float(_slope(running, x, tensor, direction, STEPS[-1])) ** 2
    if not by_differences**0.5 <= FLAT * by_gradient**0.5:
        return False
    return _jumps(running, x, tensor, first * float(tensor.abs().mean()) / 2)


INTERVALS = 16
HALVINGS = 45
"""Down to 1e-15 of a step, where what has no jump moves by less than a rounding."""


def _jumps(running: Running, x: Tensor, tensor: Tensor, step: Tensor) -> bool:
    """Whether the output jumps on the way of a step: halved and halved, a difference remains."""

    def at(t: float) -> Tensor:
        return _moved(running, x, tensor, step * t)

    ends = [n / INTERVALS for n in range(INTERVALS + 1)]
    outs = [at(t) for t in ends]
    far = [largest(b - a) for a, b in itertools.pairwise(outs)]
    n = far.index(max(far))
    low, high, below, above = ends[n], ends[n + 1], outs[n], outs[n + 1]
    for _ in range(HALVINGS):
        t = (low + high) / 2
        out = at(t)
        if largest(out - below) >= largest(above - out):
            high, above = t, out
        else:
            low, below = t, out
    return largest(above - below) > 1e-6 * max(largest(o) for o in outs)
