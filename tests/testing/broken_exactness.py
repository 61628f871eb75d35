"""Attention that says more of itself than is so: exact, for any length, without order; dropout."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from tests.testing.correct import SOFTMAX, Plain
from tests.testing.correct_kinds import Featured
from torch import Tensor, nn
from torch.nn.functional import dropout

from polyattn import Inputs, Lengths, Mask, State


class KernelCalledExact(Featured):
    """The kernel of linear attention; its definition says the same, so that both agree."""

    capabilities = dataclasses.replace(Featured.capabilities, exactness="exact")


class TemperatureOfItsOwn(Plain):
    """Softmax at a temperature that code and definition share and no option names."""

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return super().logits(q, k) * 0.5

    def reference(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        return super().reference(q * 0.5, k, v, mask, inputs)


class AddsByATable(Plain):
    """A number for each key position, of a table as long as the sizes say."""

    capabilities = dataclasses.replace(
        SOFTMAX, key_order_invariant=False, exactness="own kernel", state="none", compiles="no"
    )

    def build(self) -> None:
        self.table = nn.Parameter(torch.randn(self.require_sizes().max_length or 1))

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return super().logits(q, k) + self.table[: k.shape[2]].to(q.dtype)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        bias = self.table[: k.shape[2]].to(q.dtype)[None, None, None]
        return super().reference(q, k, v, mask & Mask.bias(bias), inputs)


class BufferOfTheLongest(Plain):
    """Positions are counted once, for the longest sequence there shall be."""

    capabilities = dataclasses.replace(SOFTMAX, compiles="no")

    def build(self) -> None:
        longest = self.require_sizes().max_length or 1
        self.register_buffer("positions", torch.arange(longest), persistent=False)

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        positions: Any = self.positions
        return super().logits(q, k[:, :, positions[: k.shape[2]]])


class DefinitionThatRaises(Plain):
    capabilities = dataclasses.replace(SOFTMAX, exactness="own kernel")

    def reference(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        return torch.einsum("bhld,bhsd->bhls", q, k.mT)


class StepWithoutItsHeads(Plain):
    def step(
        self, q: Tensor, k: Tensor, v: Tensor, state: Any, mask: Mask, inputs: Inputs
    ) -> tuple[Tensor, State]:
        out, state = super().step(q, k, v, state, mask, inputs)
        return out.flatten(1, 2) if q.shape[2] == 1 else out, state


class ScaleWrittenIntoTheCode(Plain):
    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return (q * q.shape[-1] ** -0.5) @ k.mT


class ScaleForgottenForOneQuery(Plain):
    """A short way for a single query, which takes the default."""

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        if q.shape[2] == 1:
            return (q * q.shape[-1] ** -0.5) @ k.mT
        return super().logits(q, k)


class CausalWithoutOrder(Plain):
    """Every call is causal, and yet the order of the keys is said not to matter."""

    capabilities = dataclasses.replace(SOFTMAX, requires={"causal"})


class DropsHalfWhateverIsAsked(Plain):
    def dropped(self, weights: Tensor) -> Tensor:
        return dropout(weights) if self.dropout_p else weights


class DropsWhatItShouldKeep(Plain):
    def dropped(self, weights: Tensor) -> Tensor:
        return dropout(weights, 1 - self.dropout_p) if self.dropout_p else weights


class ReadsSizesThatAreNotThere(Plain):
    def build(self) -> None:
        self.width: Any = self.sizes.head_dim  # type: ignore[union-attr]


class TableWithoutALength(Plain):
    """Sizes are asked for, and that they may have no longest length is forgotten."""

    capabilities = dataclasses.replace(SOFTMAX, lengths=Lengths(up_to="max_length"), state="none")

    def build(self) -> None:
        longest = self.require_sizes().max_length
        self.register_buffer("table", torch.zeros(longest))  # type: ignore[arg-type]


CAUGHT = (
    (ReadsSizesThatAreNotThere, "check_missing_sizes"),
    (TableWithoutALength, "check_missing_sizes"),
    (DefinitionThatRaises, "check_matches_reference"),
    (StepWithoutItsHeads, "check_decode_equals_parallel"),
    (ScaleWrittenIntoTheCode, "check_scale_is_read"),
    (ScaleForgottenForOneQuery, "check_scale_is_read"),
    (CausalWithoutOrder, "check_key_order"),
    (DropsHalfWhateverIsAsked, "check_dropout_share"),
    (DropsWhatItShouldKeep, "check_dropout_share"),
    (KernelCalledExact, "check_exact_is_softmax"),
    (TemperatureOfItsOwn, "check_exact_is_softmax"),
    (AddsByATable, "check_any_length"),
    (BufferOfTheLongest, "check_any_length"),
)

RAISES = (
    AddsByATable,
    BufferOfTheLongest,
    ReadsSizesThatAreNotThere,
    TableWithoutALength,
    DefinitionThatRaises,
)
