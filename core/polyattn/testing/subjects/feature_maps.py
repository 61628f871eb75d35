"""What the checks of feature maps see."""

from __future__ import annotations

import copy
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

from polyattn.capabilities import FeatureMapCapabilities
from polyattn.testing.subjects.sequence import blaming, fixed_gradient
from polyattn.testing.tools.cases import normal
from polyattn.testing.tools.devices import CPU, Place
from polyattn.testing.tools.numerics import (
    compare,
    largest,
    need_finite,
    need_tensor,
    same_tolerance,
    value_tolerance,
)


class FeatureMapSubject(ABC):
    """A variant over feature maps x (B, C, *spatial)."""

    name: str
    capabilities: FeatureMapCapabilities
    place: Place = CPU
    """Where its code runs; the claims are read for this device."""

    @abstractmethod
    def build(self, channels: int, dtype: torch.dtype, *, seed: int = 0) -> nn.Module:
        """A module in evaluation mode; the same seed gives the same parameters."""

    @abstractmethod
    def definition(self, module: nn.Module, x: Tensor, keep: Tensor | None = None) -> Tensor:
        """What ``module`` should give, by the definition."""

    @property
    def dtypes(self) -> frozenset[torch.dtype]:
        """What it claims to take."""
        support = self.capabilities.devices.get(self.place.name)
        return frozenset(support.dtypes) if support else frozenset()

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the value checks."""
        return torch.float64 if torch.float64 in self.dtypes else torch.float32


@dataclasses.dataclass(frozen=True)
class MapOutcome:
    """An output, and the gradients of x and of each parameter by what they are called."""

    out: Tensor
    grads: dict[str, Tensor]


MapFunction = Callable[[Tensor], Tensor]


def run_map(
    module: nn.Module,
    x: Tensor,
    given: str,
    *,
    function: MapFunction | None = None,
    grad_out: Tensor | None = None,
) -> MapOutcome:
    """Forward and backward of ``function`` (the module itself by default) at this very x.

    A gradient that there is none of counts as zero. grad_out: fixed random numbers by default.
    """
    leaf = x.detach().requires_grad_()
    named = dict(module.named_parameters())
    leaves = {"the gradient of x": leaf, **{f"the gradient of {n}": p for n, p in named.items()}}
    with blaming(given):
        out = need_tensor("the output", (function or module)(leaf), given)
        weight = fixed_gradient(out).to(out.dtype) if grad_out is None else grad_out
        grads = torch.autograd.grad(out, list(leaves.values()), weight, allow_unused=True)
    return MapOutcome(
        out.detach(),
        {
            name: torch.zeros_like(tensor) if grad is None else grad
            for (name, tensor), grad in zip(leaves.items(), grads, strict=True)
        },
    )


def against_map_definition(
    subject: FeatureMapSubject,
    size: tuple[int, ...],
    *,
    keep: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> None:
    """The output and the gradients of x and of each parameter, against the definition.

    In a dtype narrower than float64, by what the definition itself loses there.
    """
    dtype = dtype or subject.dtype
    module = subject.build(size[1], dtype)
    x = normal(*size, seed=1).to(dtype)
    given = f"x {size}, {dtype}{'' if keep is None else ', keep'}"

    def real(out: object) -> Tensor:
        """Of the pixels that are closed nothing is said."""
        out = need_tensor("the output", out, given)
        return out if keep is None else out.masked_fill(~keep[:, None], 0.0)

    closed = () if keep is None else (keep,)
    got = run_map(module, x, given, function=lambda x: real(module(x, *closed)))
    told = "the definition, " + given

    def defined(module: nn.Module, x: Tensor) -> MapOutcome:
        return run_map(
            module, x, told, function=lambda x: real(subject.definition(module, x, keep))
        )

    want = defined(copy.deepcopy(module).double(), x.double())
    plain = None if dtype == torch.float64 else defined(module, x)
    allowed = value_tolerance(want.out, None if plain is None else plain.out, dtype)
    compare("the output", got.out, want.out, tolerance=allowed, given=given)
    for name, expected in want.grads.items():
        e0 = None if plain is None else plain.grads[name]
        allowed = value_tolerance(expected, e0, dtype, gradient=True)
        compare(name, got.grads[name], expected, tolerance=allowed, given=given)


def same_map_outcome(got: MapOutcome, want: MapOutcome, dtype: torch.dtype, *, given: str) -> None:
    """Two runs of the same code: the output and each gradient agree within rounding."""
    pairs = [("the output", got.out, want.out)]
    pairs += [(name, got.grads[name], expected) for name, expected in want.grads.items()]
    for name, found, expected in pairs:
        allowed = same_tolerance(dtype, max(1.0, largest(expected)), factor=4.0)
        compare(name, found, expected, tolerance=allowed, given=given)


def gate_of(module: nn.Module, x: Tensor, given: str) -> Tensor:
    """The output over the input; x holds no number near zero."""
    with blaming(given), torch.no_grad():
        gate = need_tensor("the output", module(x), given) / x
    need_finite("the gate", gate, given)
    return gate


def away_from_zero(x: Tensor) -> Tensor:
    """x moved away from zero, where a quotient says nothing."""
    return x + torch.where(x < 0, -0.5, 0.5)
