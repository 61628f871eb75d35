"""What cross-attention holds of the other sequence, and what self-attention holds between steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from torch import Tensor

from polyattn.errors import MaskError
from polyattn.layers.positions import Count
from polyattn.mask import Mask
from polyattn.state import State, pick_samples

__all__ = ["AttentionState", "Memory"]


@dataclass(frozen=True, eq=False)
class Memory:
    """The projected keys and values of a context, computed once and attended to many times.

    keys (B, Hkv, S, D), values (B, Hkv, S, Dv), inputs: the variant's side inputs, like keys.
    mask: the context's padding, or full. Made by `MultiHeadAttention.remember`; it never grows.
    """

    keys: Tensor
    values: Tensor
    inputs: Mapping[str, Tensor] = field(default_factory=dict)
    mask: Mask = field(default_factory=Mask)

    def __post_init__(self) -> None:
        # All else speaks of the queries too, which are not known yet.
        if not self.mask.parts <= {"padding"}:
            raise MaskError(
                f"memory: expected a mask of padding alone, got {sorted(self.mask.parts)}; give "
                "the rest with each call"
            )

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors it holds."""
        padding = () if self.mask.real is None else (self.mask.real,)
        held = (self.keys, self.values, *self.inputs.values(), *padding)
        return sum(t.nbytes for t in held)

    def reorder(self, index: Tensor) -> Memory:
        """The memory of the samples picked by ``index`` (integer, any length), for beams."""
        real = self.mask.real
        return Memory(
            pick_samples(self.keys, index),
            pick_samples(self.values, index),
            {name: pick_samples(tensor, index) for name, tensor in self.inputs.items()},
            self.mask if real is None else Mask.padding(pick_samples(real, index)),
        )


@dataclass(frozen=True, eq=False)
class AttentionState(State):
    """What `MultiHeadAttention` keeps between steps: the variant's state, and the positions' count.

    The count stands still where positions are given from outside, or where nothing reads them.
    """

    inner: State
    count: Count = field(default_factory=Count)

    @property
    def length(self) -> int:  # type: ignore[override]
        return self.inner.length

    @property
    def nbytes(self) -> int:
        return self.inner.nbytes + self.count.nbytes

    def reorder(self, index: Tensor) -> Self:
        return replace(self, inner=self.inner.reorder(index), count=self.count.reorder(index))
