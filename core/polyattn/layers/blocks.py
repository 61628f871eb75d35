"""Blocks: a mixer, perhaps a second one that looks at a memory, and a feed-forward part.

A block does not know what mixes its tokens: anything that is a `TokenMixer` will do.
Letters: B batch, L length, E model width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from polyattn.errors import ConfigError
from polyattn.mask import Mask
from polyattn.state import State

__all__ = ["RESIDUALS", "Block", "PostNorm", "PreNorm", "Residual", "TokenMixer"]


class TokenMixer(Protocol):
    """What a block holds: `MultiHeadAttention`, or a mechanism that owns its projections."""

    def __call__(
        self,
        x: Tensor,
        context: Any = None,
        mask: Mask | None = None,
        positions: Tensor | None = None,
        state: State | None = None,
    ) -> tuple[Tensor, State | None]:
        """x (B, L, E) -> (B, L, E), and the state after it if one was given."""
        ...

    def new_state(
        self,
        batch: int,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
    ) -> State:
        """The empty decoding state, or Unsupported."""
        ...


class Residual(nn.Module):
    """A path around a part of a block. `enter` gives what the part reads, `leave` joins them."""

    def __init__(self, norm: nn.Module, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm = norm
        self.dropout = nn.Dropout(dropout)

    def enter(self, x: Tensor) -> Tensor:
        """x -> what the part reads."""
        raise NotImplementedError

    def leave(self, x: Tensor, y: Tensor) -> Tensor:
        """x and what the part made -> their sum, normalised or not."""
        raise NotImplementedError


class PreNorm(Residual):
    """``x + f(norm(x))``. The stack then ends with a norm of its own. Xiong et al., 2002.04745."""

    def enter(self, x: Tensor) -> Tensor:
        entered: Tensor = self.norm(x)
        return entered

    def leave(self, x: Tensor, y: Tensor) -> Tensor:
        left: Tensor = x + self.dropout(y)
        return left


class PostNorm(Residual):
    """``norm(x + f(x))``, as in Vaswani et al., arXiv 1706.03762."""

    def enter(self, x: Tensor) -> Tensor:
        return x

    def leave(self, x: Tensor, y: Tensor) -> Tensor:
        left: Tensor = self.norm(x + self.dropout(y))
        return left


RESIDUALS: Mapping[str, type[Residual]] = MappingProxyType({"pre": PreNorm, "post": PostNorm})
"""By the place of the norm, for configs."""


class Block(nn.Module):
    """Mixes the tokens, then looks at the memory if it has a cross mixer, then at each alone.

    Without ``cross`` it is an encoder block, and under a causal mask that of a language model;
    with it a decoder block. residual: makes one path around each part, for example
    ``lambda: PreNorm(nn.LayerNorm(E), dropout)``.
    """

    mixer: TokenMixer
    cross: TokenMixer | None

    def __init__(
        self,
        mixer: TokenMixer,
        feed_forward: nn.Module,
        residual: Callable[[], Residual],
        *,
        cross: TokenMixer | None = None,
    ) -> None:
        super().__init__()
        self.mixer = mixer
        self.mixer_residual = residual()
        self.cross = cross
        self.cross_residual = residual() if cross is not None else None
        self.feed_forward = feed_forward
        self.feed_forward_residual = residual()

    def forward(
        self,
        x: Tensor,
        context: Any = None,
        mask: Mask | None = None,
        positions: Tensor | None = None,
        state: State | None = None,
    ) -> tuple[Tensor, State | None]:
        """x (B, L, E) -> (B, L, E), and the mixer's state after it (None where none was given).

        context: for the cross mixer, (B, S, E) or its memory, which holds the context's padding.
        mask, positions, state: of x, for the mixer.

        Raises: ConfigError where a context is given to a block without cross mixer, or missing.
        """
        if (context is None) != (self.cross is None):
            wanted, way_out = (
                ("no context", "build the block with cross=...")
                if self.cross is None
                else ("a context", "give (B, S, E) or the cross mixer's memory")
            )
            raise ConfigError(f"block: expected {wanted}, got the opposite; {way_out}")
        entered = self.mixer_residual.enter(x)
        mixed, state = self.mixer(entered, None, mask, positions, state)
        x = self.mixer_residual.leave(x, mixed)
        if self.cross is not None and self.cross_residual is not None:
            seen, _ = self.cross(self.cross_residual.enter(x), context)
            x = self.cross_residual.leave(x, seen)
        fed = self.feed_forward(self.feed_forward_residual.enter(x))
        return self.feed_forward_residual.leave(x, fed), state

    def new_state(
        self,
        batch: int,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
    ) -> State:
        """The empty decoding state of the mixer; the memory of the cross mixer never grows."""
        return self.mixer.new_state(batch, dtype=dtype, device=device)
