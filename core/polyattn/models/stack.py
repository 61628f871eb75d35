"""What every model over a sequence is made of: tokens in, blocks, states.

Letters: B batch, L length, E model width.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from polyattn.errors import ConfigError, ShapeError
from polyattn.layers.blocks import Block
from polyattn.layers.positions import Count, Learned, Sinusoidal
from polyattn.mask import Mask
from polyattn.state import State

__all__ = ["ModelState", "SequenceModel", "TokenEmbedding"]

# Of token vectors at first. On text, at width 64: wider ones drown what the first layers add
# (3.37 bits per byte at 1.0 after 250 steps), narrower ones are drowned by it (3.28 at 0.02);
# 3.18 at this one.
_SPREAD = 0.3


class TokenEmbedding(nn.Module):
    """Vectors of tokens, and of their positions where the model adds those here.

    vocab_size: None for a model that is given embeddings.
    """

    def __init__(
        self,
        vocab_size: int | None,
        d_model: int,
        *,
        position: Sinusoidal | Learned | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.d_model = d_model
        self.tokens = None if vocab_size is None else nn.Embedding(vocab_size, d_model)
        if self.tokens is not None:
            nn.init.normal_(self.tokens.weight, std=_SPREAD)
        self.position = position
        self.dropout = nn.Dropout(dropout)

    def check(self, tokens: Tensor) -> None:
        """Raise ShapeError where ``tokens`` is not what this model reads."""
        if self.tokens is None:
            if tokens.ndim != 3 or tokens.shape[2] != self.d_model:
                raise ShapeError(
                    f"expected embeddings (batch, length, d_model = {self.d_model}), got "
                    f"{tuple(tokens.shape)}; a config with vocab_size reads ids"
                )
            return
        if tokens.ndim != 2 or tokens.dtype not in (torch.int64, torch.int32):
            raise ShapeError(
                f"expected ids as an integer tensor (batch, length), got {tokens.dtype} "
                f"{tuple(tokens.shape)}; use ids.long(), and ids[None] for one sequence"
            )
        # Elsewhere reading the values would wait for the device, or break a compiled graph.
        if tokens.device.type == "cpu" and tokens.numel() and not torch.compiler.is_compiling():
            low, high = (int(bound) for bound in tokens.aminmax())
            if low < 0 or high >= self.tokens.num_embeddings:
                raise ShapeError(
                    f"expected ids from 0 to vocab_size - 1 = {self.tokens.num_embeddings - 1}, "
                    f"got {low if low < 0 else high}; raise vocab_size or map the ids"
                )

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """ids (B, L), or embeddings (B, L, E), at positions (L,) or (B, L) -> (B, L, E)."""
        x = tokens if self.tokens is None else self.tokens(tokens)
        if self.position is not None:
            x = x + self.position(positions).to(x.dtype)
        embedded: Tensor = self.dropout(x)
        return embedded


@dataclass(frozen=True, eq=False)
class ModelState(State):
    """The states of all layers, and the count of tokens that positions continue."""

    layers: tuple[State, ...]
    count: Count = field(default_factory=Count)

    @property
    def length(self) -> int:  # type: ignore[override]
        return self.count.slots

    @property
    def nbytes(self) -> int:
        return self.count.nbytes + sum(layer.nbytes for layer in self.layers)

    def reorder(self, index: Tensor) -> Self:
        layers = tuple(layer.reorder(index) for layer in self.layers)
        return replace(self, layers=layers, count=self.count.reorder(index))


class SequenceModel(nn.Module):
    """Base of the models over a sequence: an embedding, blocks and a last norm.

    max_length: the longest sequence taken, padding included. config: what it was built from.
    """

    def __init__(
        self,
        embedding: TokenEmbedding,
        blocks: Iterable[Block],
        norm: nn.Module | None = None,
        *,
        max_length: int | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.blocks = nn.ModuleList(blocks)
        self.norm = norm
        self.max_length = max_length
        self._config = deepcopy(dict(config)) if config is not None else None

    @property
    def config(self) -> dict[str, Any]:
        """The resolved config, from which `polyattn.build` makes the same model; a fresh copy.

        Raises: ConfigError for a model that was composed by hand.
        """
        if self._config is None:
            raise ConfigError(
                "config: this model was composed by hand and has none; polyattn.build(config) "
                "makes models that know theirs"
            )
        return deepcopy(self._config)

    @property
    def layers(self) -> Iterator[Block]:
        """The blocks, as what they are."""
        for block in self.blocks:
            assert isinstance(block, Block)
            yield block

    def run(
        self,
        tokens: Tensor,
        mask: Mask,
        count: Count,
        states: Sequence[State] | None = None,
    ) -> tuple[Tensor, Count, list[State]]:
        """Hidden states (B, L, E) of the next tokens, the count and the states after them."""
        self.embedding.check(tokens)
        batch, length = tokens.shape[:2]
        self._check_length(count.slots + length)
        mask.check(batch, None, length, length)
        positions, count = count.take(mask, length, tokens.device)
        x = self.embedding(tokens, positions)
        after = []
        for layer, block in enumerate(self.layers):
            state = None if states is None else states[layer]
            x, state = block(x, None, mask, positions, state)
            if state is not None:
                after.append(state)
        return (x if self.norm is None else self.norm(x)), count, after

    def _check_length(self, length: int) -> None:
        if self.max_length is not None and length > self.max_length:
            raise ShapeError(
                f"expected at most max_length = {self.max_length} tokens, got {length}; shorten "
                "the sequence or raise max_length in the config"
            )
