"""How a network is told which positions are padding."""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch
from torch import Tensor

from polyattn.mask import Mask

PaddingForm = Literal["keys", "one_query", "queries", "heads", "heads_queries", "mask"]
Meaning = Literal["attend", "masked", "ones", "numbers", "floats"]


@dataclasses.dataclass(frozen=True)
class Padding:
    """How padding is said: by which argument, in which form, and what its elements mean."""

    name: str
    form: PaddingForm
    meaning: Meaning

    def lowered(self, keep: Tensor, dtype: torch.dtype) -> Tensor | Mask:
        """keep (B, S), True where a position is real, as this argument takes it."""
        if self.form == "mask":
            return Mask.padding(keep)
        batch, length = keep.shape
        formed = {
            "keys": lambda: keep,
            "one_query": lambda: keep[:, None],
            "queries": lambda: keep[:, None].expand(batch, length, length),
            "heads": lambda: keep[:, None, None],
            "heads_queries": lambda: keep[:, None, None].expand(batch, 1, length, length),
        }[self.form]()
        formed = formed.clone()
        if self.meaning == "floats":
            # Not -inf: the usual convention, under which a row of padding alone is no NaN.
            return torch.zeros(formed.shape, dtype=dtype).masked_fill(
                ~formed, torch.finfo(dtype).min
            )
        if self.meaning in ("ones", "numbers"):
            return formed.to(torch.int64 if self.meaning == "ones" else dtype)
        return formed if self.meaning == "attend" else ~formed

    def __str__(self) -> str:
        if self.form == "mask":
            return f"padding goes to {self.name} as a polyattn Mask"
        shape = {
            "keys": "(B, S)",
            "one_query": "(B, 1, S)",
            "queries": "(B, S, S)",
            "heads": "(B, 1, 1, S)",
            "heads_queries": "(B, 1, S, S)",
        }[self.form]
        meaning = {
            "attend": "True is real",
            "masked": "True is padding",
            "ones": "1 is real and 0 is padding",
            "numbers": "1.0 is real and 0.0 is padding",
            "floats": "0.0 is real and the least number is padding",
        }[self.meaning]
        return f"padding goes to {self.name} as {shape}, where {meaning}"
