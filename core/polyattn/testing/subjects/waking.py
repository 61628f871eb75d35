"""Parameters that start at zero, and hide all that they are multiplied with until they learn.

A projection, a gate or a scale of a layer that is zero at first is usual, and right. But what it
hides breaks no rule, whatever it is: such parameters are given other numbers, as training would.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from polyattn.testing.tools.cases import normal

FAINT = 1e-2
"""Layer scales begin at 1e-4 or less, where a leak is lost in rounding."""


def asleep(module: nn.Module) -> list[str]:
    """The names of the parameters that learn and are zero, or the same small number throughout.

    Biases that are added are not meant: they hide nothing.
    """
    return [name for name, _ in _asleep(module)]


def _asleep(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    for name, parameter in module.named_parameters():
        if is_lazy(parameter) or not parameter.requires_grad or not parameter.numel():
            continue
        if not parameter.is_floating_point():
            continue
        added = parameter.dim() == 1 and "bias" in name.rpartition(".")[2]
        values = parameter.detach()
        same = bool((values == values.flatten()[0]).all())
        if same and not added and float(values.flatten()[0].abs()) <= FAINT:
            yield name, parameter


def wake(module: nn.Module, seed: int) -> None:
    """Give those parameters numbers of the size that learnt ones have, always the same."""
    for number, (_, parameter) in enumerate(list(_asleep(module))):
        drawn = normal(*parameter.shape, seed=900 + 31 * seed + number)
        if parameter.dim() > 1:
            drawn = drawn * parameter.shape[-1] ** -0.5
        else:
            # A gate or a scale: none of its entries may be close to zero.
            drawn = (0.5 + drawn.abs() / 4) * drawn.sign()
        with torch.no_grad():
            parameter.copy_(drawn)
