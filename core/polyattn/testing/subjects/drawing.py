"""The inputs of modules and models, which know how they were drawn: a failure says it of them."""

from __future__ import annotations

import torch
from torch import Tensor

from polyattn.testing.tools.cases import normal

HOW = "polyattn_drawn"
"""The attribute that tells it; what is computed from such a tensor has none, nor has a clone."""


def drawn_x(*size: int, dtype: str | torch.dtype, seed: int) -> Tensor:
    """x (B, S, E), normal numbers rounded to a dtype."""
    dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    return _knowing(normal(*size, seed=seed).to(dtype), f"seed {seed}")


def drawn_ids(*size: int, vocab: int, seed: int) -> Tensor:
    """ids (B, S), from 0 to below ``vocab``."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(vocab, size, generator=generator)
    return _knowing(ids, f"seed {seed} of {vocab} ids")


def how_drawn(x: Tensor) -> str:
    """How it was drawn, in the words that ``recipes`` reads; empty where it has been changed."""
    how, version = x.__dict__.get(HOW, ("", 0))
    return how if how and x._version == version else ""


def _knowing(x: Tensor, how: str) -> Tensor:
    # What is drawn under inference mode counts no writes.
    if not x.is_inference():
        x.__dict__[HOW] = (how, x._version)
    return x
