"""Normalisation by name, for configs; whoever composes layers gives any factory of modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from torch import nn

__all__ = ["NORMS", "Norm"]

Norm = Callable[[int], nn.Module]
"""From a width to a module that maps (..., width) to the same shape."""

# One epsilon for both kinds: RMSNorm's own default depends on the dtype, so that a model would
# change its function when it is converted.
NORMS: Mapping[str, Norm] = MappingProxyType(
    {
        "layernorm": partial(nn.LayerNorm, eps=1e-5),
        "rmsnorm": partial(nn.RMSNorm, eps=1e-5),
    }
)
"""layernorm: Ba et al., arXiv 1607.06450. rmsnorm: Zhang and Sennrich, arXiv 1910.07467."""
