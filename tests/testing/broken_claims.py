"""Attention that claims a property it lacks: linear values, order, dropout, graphs, states."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from tests.testing.correct import Plain
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from polyattn import Inputs, Mask, Sizes, State


class SlopesWithoutGradient(Plain):
    def bias(self, mask: Mask, logits: Tensor) -> Tensor | None:
        if mask.slopes is not None:
            mask = dataclasses.replace(mask, slopes=mask.slopes.detach())
        return super().bias(mask, logits)


class ClampsValues(Plain):
    def out(self, weights: Tensor, v: Tensor) -> Tensor:
        return super().out(weights, v.clamp(-3.0, 3.0))


class AddsAConstant(Plain):
    def out(self, weights: Tensor, v: Tensor) -> Tensor:
        return super().out(weights, v) + 1e-3


class FavoursLateKeys(Plain):
    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return super().logits(q, k) + 1e-6 * torch.arange(k.shape[2])


class NeverSeesTheFirstKey(Plain):
    def weights(self, logits: Tensor, keep: Tensor | None) -> Tensor:
        late = torch.arange(logits.shape[-1]) > 0 if logits.shape[-1] > 1 else torch.ones(1) > 0
        return super().weights(logits, late if keep is None else keep & late)


class DropsInEvaluation(Plain):
    def dropped(self, weights: Tensor) -> Tensor:
        return functional.dropout(weights, self.config.dropout)


class KeptWeightsNotScaled(Plain):
    def dropped(self, weights: Tensor) -> Tensor:
        return super().dropped(weights) * (1 - self.dropout_p)


class NeverDrops(Plain):
    def dropped(self, weights: Tensor) -> Tensor:
        return weights


class DropsByItsOwnGenerator(Plain):
    def build(self) -> None:
        self._generator = torch.Generator().manual_seed(0)

    def dropped(self, weights: Tensor) -> Tensor:
        if not self.dropout_p:
            return weights
        kept = torch.rand(weights.shape, generator=self._generator) >= self.dropout_p
        return weights * kept / (1 - self.dropout_p)


class ReadsANumber(Plain):
    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        logits = super().logits(q, k)
        return logits if logits.sum().item() == 0 else logits * 1.0


class TableOfLengths(Plain):
    """Compiles once for each length."""

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        known = dict.fromkeys(range(400), 1.0)
        return super().logits(q, k) * known[k.shape[2]]


class OtherwiseWhenCompiled(Plain):
    def out(self, weights: Tensor, v: Tensor) -> Tensor:
        out = super().out(weights, v)
        return out * 1.001 if torch.compiler.is_compiling() else out


class _OnceOnly(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: object, grad: Tensor) -> Tensor:
        return grad


class DifferentiableOnce(Plain):
    def out(self, weights: Tensor, v: Tensor) -> Tensor:
        return _OnceOnly.apply(super().out(weights, v))


class _SquareWrittenByHand(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x + 0.1 * x * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad * (1 + 0.2 * x.detach())


class DetachedInItsBackward(Plain):
    """Right gradients, whose own gradients lack a path."""

    def out(self, weights: Tensor, v: Tensor) -> Tensor:
        return _SquareWrittenByHand.apply(super().out(weights, v))


class QueriesAloneHaveNoGradient(Plain):
    """Asks the new keys whether a graph is needed."""

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, state: Any, mask: Mask, inputs: Inputs
    ) -> tuple[Tensor, State]:
        if not k.requires_grad:
            q = q.detach() + 0 * q
        return super().step(q, k, v, state, mask, inputs)


class Written(State):
    """Key-like tensors in one list, which every chunk is added to in place."""

    def __init__(self, chunks: list[Mapping[str, Tensor]]) -> None:
        self.chunks = chunks

    @property
    def length(self) -> int:  # type: ignore[override]
        return sum(chunk["k"].shape[2] for chunk in self.chunks)

    @property
    def nbytes(self) -> int:
        return 0

    def reorder(self, index: Tensor) -> Written:
        return Written([{n: t[index] for n, t in chunk.items()} for chunk in self.chunks])

    def append(
        self, new: Mapping[str, Tensor], mask: Mask, queries: Tensor
    ) -> tuple[Any, Mask, Written]:
        self.chunks.append(new)
        return *self.held(), self

    def held(self) -> tuple[dict[str, Tensor], Mask]:
        held = {n: torch.cat([c[n] for c in self.chunks], dim=2) for n in self.chunks[0]}
        return held, Mask.causal()


class Forgetful(Written):
    """A value, but that its samples stay where they are."""

    def reorder(self, index: Tensor) -> Written:
        count = index.shape[0]
        return Forgetful([{n: t[:count] for n, t in chunk.items()} for chunk in self.chunks])

    def append(
        self, new: Mapping[str, Tensor], mask: Mask, queries: Tensor
    ) -> tuple[Any, Mask, Written]:
        grown = Forgetful([*self.chunks, new])
        return *grown.held(), grown


class Obliging(Forgetful):
    """Makes whatever comes fit: other samples, other dtypes."""

    def held(self) -> tuple[dict[str, Tensor], Mask]:
        last = self.chunks[-1]
        batch = last["k"].shape[0]
        width = last["k"].shape[3]
        self.chunks = [
            {
                n: t[torch.arange(batch) % t.shape[0]][..., : width if n == "k" else None].to(
                    last[n].dtype
                )
                for n, t in chunk.items()
            }
            for chunk in self.chunks
        ]
        return super().held()

    def append(
        self, new: Mapping[str, Tensor], mask: Mask, queries: Tensor
    ) -> tuple[Any, Mask, Written]:
        grown = Obliging([*self.chunks, new])
        return *grown.held(), grown


class StateWrittenInPlace(Plain):
    def start(
        self, batch: int, sizes: Sizes | None, *, dtype: torch.dtype, device: torch.device
    ) -> State:
        return Written([])


class StateNotReordered(Plain):
    def start(
        self, batch: int, sizes: Sizes | None, *, dtype: torch.dtype, device: torch.device
    ) -> State:
        return Forgetful([])


class StateThatFitsAnything(Plain):
    def start(
        self, batch: int, sizes: Sizes | None, *, dtype: torch.dtype, device: torch.device
    ) -> State:
        return Obliging([])


class StateThatFailsSomewhere(StateNotReordered):
    """Raises, but from within, and says nothing of what would fit."""


RAISES = frozenset({ReadsANumber, StateThatFailsSomewhere})
"""Their fault is that they raise; of all others something wrong must be seen."""

CAUGHT: tuple[tuple[type[Plain], str], ...] = (
    (SlopesWithoutGradient, "check_gradcheck"),
    (SlopesWithoutGradient, "check_matches_reference"),
    (ClampsValues, "check_value_linearity"),
    (AddsAConstant, "check_value_linearity"),
    (FavoursLateKeys, "check_key_order"),
    (NeverSeesTheFirstKey, "check_key_order"),
    (DropsInEvaluation, "check_dropout_semantics"),
    (KeptWeightsNotScaled, "check_dropout_semantics"),
    (NeverDrops, "check_dropout_semantics"),
    (DropsByItsOwnGenerator, "check_dropout_semantics"),
    (ReadsANumber, "check_compile"),
    (TableOfLengths, "check_compile"),
    (OtherwiseWhenCompiled, "check_compile"),
    (DifferentiableOnce, "check_double_backward"),
    (DetachedInItsBackward, "check_double_backward"),
    (QueriesAloneHaveNoGradient, "check_decode_equals_parallel"),
    (StateWrittenInPlace, "check_state_is_a_value"),
    (StateNotReordered, "check_state_is_a_value"),
    (StateThatFitsAnything, "check_state_fits"),
    (StateThatFailsSomewhere, "check_state_fits"),
)
"""Each with the check that must catch it, by name."""
