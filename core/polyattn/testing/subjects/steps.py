"""A step of training, forward and backward, and what is the same within a network's rounding."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from polyattn.testing.subjects.networks import Running, described
from polyattn.testing.subjects.sequence import blaming, fixed_gradient
from polyattn.testing.tools.numerics import compare, largest, need_finite, same_tolerance

DEEP = 16.0
"""Rounding errors add up in a network: this many times what one attention is allowed."""


@dataclasses.dataclass(frozen=True)
class Step:
    """An output, and the gradients of x (where it holds floats) and of each parameter, by name."""

    out: Tensor
    x: Tensor | None
    parameters: Mapping[str, Tensor]


def step(running: Running, x: Tensor, *, weight: Tensor | None = None, **keywords: Any) -> Step:
    """Forward and backward, as training takes them; a gradient that there is none of is zero."""
    named = dict[str, nn.Parameter]()
    if isinstance(running.function, nn.Module):
        named = dict(parameters_of(running))
    for parameter in named.values():
        parameter.grad = None
    given = f"{described(x, **keywords)}, backward"
    x = x.detach().clone().requires_grad_(x.is_floating_point())
    out = running(x, **keywords)
    with blaming(given):
        if out.requires_grad:
            weight = fixed_gradient(out) if weight is None else weight
            torch.autograd.backward(out, weight.to(out.dtype))
    grads = {name: _gradient_of(parameter) for name, parameter in named.items()}
    for parameter in named.values():
        parameter.grad = None
    return Step(out.detach(), _gradient_of(x) if x.is_floating_point() else None, grads)


def _gradient_of(leaf: Tensor) -> Tensor:
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad.clone()


def agree(what: str, got: Tensor, want: Tensor, *, given: str, factor: float = DEEP) -> None:
    """Both are the same, within what a network's rounding makes of two ways to compute."""
    allowed = same_tolerance(want.dtype, max(1.0, largest(want)), factor=factor)
    need_finite(what, want, given)
    compare(what, got, want, tolerance=allowed, given=given)


def same_step(got: Step, want: Step, *, given: str) -> None:
    """The output and each gradient agree."""
    agree("the output", got.out, want.out, given=given)
    if got.x is not None and want.x is not None:
        agree("the gradient of x", got.x, want.x, given=given, factor=4 * DEEP)
    for name, expected in want.parameters.items():
        told = f"the gradient of the parameter {name}"
        agree(told, got.parameters[name], expected, given=given, factor=4 * DEEP)


def parameters_of(running: Running) -> Iterator[tuple[str, nn.Parameter]]:
    """The parameters that learn."""
    for name, parameter in running.module.named_parameters():
        if parameter.requires_grad:
            yield name, parameter
