"""The language model: every token sees those before it, and says what comes next.

Letters: B batch, L length, E model width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from polyattn.errors import ConfigError, ShapeError
from polyattn.layers.blocks import Block
from polyattn.layers.positions import Count
from polyattn.mask import Mask, as_mask
from polyattn.models.stack import ModelState, SequenceModel, TokenEmbedding

__all__ = ["CausalLM", "generate"]


class CausalLM(SequenceModel):
    """ids (B, L) -> logits of each next token (B, L, V). Always causal."""

    def __init__(
        self,
        embedding: TokenEmbedding,
        blocks: Iterable[Block],
        norm: nn.Module | None = None,
        *,
        vocab_size: int,
        max_length: int | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(embedding, blocks, norm, max_length=max_length, config=config)
        self.head = nn.Linear(embedding.d_model, vocab_size, bias=False)

    def forward(self, ids: Tensor, mask: Mask | None = None) -> Tensor:
        """Logits (B, L, V). mask: on top of the causal one, such as padding or segments.

        Raises: ShapeError, MaskError; Unsupported where a layer's variant does not claim the call.
        """
        x, _, _ = self.run(ids, Mask.causal() & as_mask(mask), Count())
        logits: Tensor = self.head(x)
        return logits

    def new_state(
        self,
        batch: int,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
    ) -> ModelState:
        """The empty state of ``batch`` sequences; dtype and device: the weights' own.

        Raises: Unsupported where a layer's variant has no decoding state.
        """
        return ModelState(
            tuple(layer.new_state(batch, dtype=dtype, device=device) for layer in self.layers)
        )

    def extend(
        self, ids: Tensor, state: ModelState, mask: Mask | None = None
    ) -> tuple[Tensor, ModelState]:
        """Logits (B, L, V) of the next ids (B, L), and the state after them.

        Any way of cutting a sequence gives what one call gives. mask: of these ids only; the
        state remembers the rest and stays as it was, so it may be extended twice.
        """
        if not isinstance(state, ModelState) or len(state.layers) != len(self.blocks):
            raise ConfigError(
                f"state: expected one from this model's new_state, got {type(state).__name__}"
            )
        x, count, layers = self.run(ids, as_mask(mask), state.count, state.layers)
        return self.head(x), ModelState(tuple(layers), count)


@torch.no_grad()
def generate(
    model: CausalLM,
    ids: Tensor,
    tokens: int,
    *,
    temperature: float = 0.0,
    generator: torch.Generator | None = None,
    mask: Mask | None = None,
) -> Tensor:
    """ids (B, L) continued by ``tokens`` ids each: (B, L + tokens). In evaluation mode.

    temperature: 0 takes the likeliest id; else the logits are divided by it and one is drawn,
    with ``generator``. mask: of the prompt, such as the padding of prompts aligned to the right.

    Raises: ShapeError for an empty prompt; ConfigError for a negative number.
    """
    if tokens < 0 or not 0 <= temperature < float("inf"):
        raise ConfigError(
            f"generate: expected tokens >= 0 and a finite temperature >= 0, got {tokens} and "
            f"{temperature}"
        )
    if ids.ndim != 2 or ids.shape[1] == 0:
        raise ShapeError(
            f"generate: expected a prompt (batch, at least one id), got {tuple(ids.shape)}"
        )
    # Each part its own: a caller may have frozen some of them in evaluation mode.
    modes = [(part, part.training) for part in model.modules()]
    model.eval()
    try:
        state, new = model.new_state(ids.shape[0]), ids
        for _ in range(tokens):
            logits, state = model.extend(new, state, mask)
            new, mask = _pick(logits[:, -1], temperature, generator).to(ids.dtype), None
            ids = torch.cat([ids, new], 1)
    finally:
        for part, training in modes:
            part.training = training
    return ids


def _pick(logits: Tensor, temperature: float, generator: torch.Generator | None) -> Tensor:
    """logits (B, V) -> (B, 1)."""
    if temperature == 0:
        return logits.argmax(-1, keepdim=True)
    chances = torch.softmax(logits.float() / temperature, -1)
    return torch.multinomial(chances, 1, generator=generator)
