"""The part of a block that looks at each position alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["FEED_FORWARDS", "FeedForward", "GatedFeedForward"]


class FeedForward(nn.Module):
    """``down(activation(up(x)))``: (..., d_model) -> (..., d_model).

    width: the hidden width. dropout: on the hidden units, in training.
    """

    def __init__(
        self,
        d_model: int,
        width: int,
        *,
        activation: Callable[[Tensor], Tensor] = F.gelu,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.up = nn.Linear(d_model, width)
        self.down = nn.Linear(width, d_model)
        self.dropout = nn.Dropout(dropout)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """x (..., d_model) -> (..., d_model)."""
        hidden: Tensor = self.dropout(self.activation(self.up(x)))
        output: Tensor = self.down(hidden)
        return output


class GatedFeedForward(nn.Module):
    """``down(silu(gate(x)) * up(x))``, SwiGLU: (..., d_model) -> (..., d_model).

    It has three matrices where :class:`FeedForward` has two, so two thirds of the width cost as
    much. Gate and up are one product, gate first. Shazeer, arXiv 2002.05202.
    """

    def __init__(self, d_model: int, width: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.gate_up = nn.Linear(d_model, 2 * width)
        self.down = nn.Linear(width, d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """x (..., d_model) -> (..., d_model)."""
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        output: Tensor = self.down(self.dropout(F.silu(gate) * up))
        return output


def _relu(d_model: int, width: int, dropout: float) -> nn.Module:
    return FeedForward(d_model, width, activation=F.relu, dropout=dropout)


def _gelu(d_model: int, width: int, dropout: float) -> nn.Module:
    return FeedForward(d_model, width, activation=F.gelu, dropout=dropout)


def _swiglu(d_model: int, width: int, dropout: float) -> nn.Module:
    return GatedFeedForward(d_model, width, dropout=dropout)


FEED_FORWARDS: Mapping[str, Callable[[int, int, float], nn.Module]] = MappingProxyType(
    {"relu": _relu, "gelu": _gelu, "swiglu": _swiglu}
)
"""By name, for configs: (d_model, width, dropout) -> a module."""
