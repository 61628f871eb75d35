"""What the checks of feature maps see."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from polyattn.capabilities import FeatureMapCapabilities
from polyattn.testing.cases import normal
from polyattn.testing.numerics import compare, value_tolerance
from polyattn.testing.subject import DEVICE, blaming, fixed_gradient


class FeatureMapSubject(ABC):
    """A variant over feature maps x (B, C, *spatial)."""

    name: str
    capabilities: FeatureMapCapabilities

    @abstractmethod
    def build(self, channels: int, dtype: torch.dtype, *, seed: int = 0) -> nn.Module:
        """A module in evaluation mode; the same seed gives the same parameters."""

    @abstractmethod
    def definition(self, module: nn.Module, x: Tensor) -> Tensor:
        """What ``module`` should give, by the definition."""

    @property
    def dtypes(self) -> frozenset[torch.dtype]:
        """What it claims to take."""
        support = self.capabilities.devices.get(DEVICE)
        return frozenset(support.dtypes) if support else frozenset()

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the value checks."""
        return torch.float64 if torch.float64 in self.dtypes else torch.float32


def against_map_definition(subject: FeatureMapSubject, size: tuple[int, ...]) -> None:
    """The output and the gradients of x and of each parameter, against the definition."""
    dtype = subject.dtype
    module = subject.build(size[1], dtype)
    x = normal(*size, seed=1).to(dtype).requires_grad_()
    given = f"x {size}, {dtype}"
    parameters = dict(module.named_parameters())
    leaves = [x, *parameters.values()]
    with blaming(given):
        out = module(x)
        grads = torch.autograd.grad(out, leaves, fixed_gradient(out).to(dtype), allow_unused=True)
    with blaming("the definition, " + given):
        want = subject.definition(module, x)
        wanted = torch.autograd.grad(
            want, leaves, fixed_gradient(want).to(dtype), allow_unused=True
        )
    names = ["the output", "the gradient of x", *(f"the gradient of {n}" for n in parameters)]
    pairs = zip(names, (out, *grads), (want, *wanted), strict=True)
    for name, got, expected in pairs:
        if expected is None:
            continue
        found = torch.zeros_like(expected) if got is None else got
        allowed = value_tolerance(expected.double(), None, dtype, gradient=name != names[0])
        compare(name, found, expected, tolerance=allowed, given=given)
