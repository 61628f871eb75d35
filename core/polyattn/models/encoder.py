"""The encoder: every token sees every other, as far as its attention and the mask let it."""

from __future__ import annotations

from torch import Tensor

from polyattn.layers.positions import Count
from polyattn.mask import Mask, as_mask
from polyattn.models.stack import SequenceModel

__all__ = ["Encoder"]


class Encoder(SequenceModel):
    """ids (B, L), or embeddings (B, L, E) without a vocabulary, -> hidden states (B, L, E)."""

    def forward(self, tokens: Tensor, mask: Mask | None = None) -> Tensor:
        """Hidden states (B, L, E); those of padded tokens mean nothing.

        mask: for example ``Mask.padding(keep)``; positions follow it.

        Raises: ShapeError, MaskError; Unsupported where a layer's variant does not claim the call.
        """
        x, _, _ = self.run(tokens, as_mask(mask), Count())
        return x
