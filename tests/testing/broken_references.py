"""Definitions that ask the very code that is compared with them, in one way each."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import torch
from tests.testing.broken_maps import PlainGate
from tests.testing.correct import Plain
from tests.testing.correct_kinds import Featured, Tempered
from torch import Tensor

from polyattn import Inputs, Mask, kit


class DefinedByItself(Plain):
    """Scaled by D, its rows sum to 0.9; and whatever it gives is called right."""

    capabilities = dataclasses.replace(
        Plain.capabilities, exactness="own kernel", rows_sum_to_one=False
    )

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT / q.shape[-1]

    def weights(self, logits: Tensor, keep: Tensor | None) -> Tensor:
        return 0.9 * kit.masked_softmax(logits, keep)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        return self.attend(q, k, v, mask, inputs)


class DefinedByItsBase(Tempered):
    """Its temperature it has itself; all else is asked of the class that it changes."""

    def reference(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        return Plain.attend(self, q * self.temperature, k, v, mask, inputs)


class DefinedByItsSteps(Featured):
    """Under a causal mask it decodes, which is what decoding is compared with."""

    def reference(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        if "causal" not in mask.parts or mask.real is not None or q.shape[1] != k.shape[1]:
            return super().reference(q, k, v, mask, inputs)
        state: Any = self.start(q.shape[0], None, dtype=q.dtype, device=q.device)
        return self.step(q, k, v, state, Mask.full(), inputs)[0]


class MapDefinedByItself(PlainGate):
    def gated(self, x: Tensor, gate: Tensor) -> Tensor:
        return x * gate.square()

    def reference(self, x: Tensor, keep: Tensor | None) -> Tensor:
        return self.attend(x, keep)


class MapDefinedByATwin(PlainGate):
    """A copy is called, as a whole: as if it were other code."""

    def pooled(self, x: Tensor, keep: Tensor | None) -> Tensor:
        return torch.tanh(super().pooled(x, keep))

    def reference(self, x: Tensor, keep: Tensor | None) -> Tensor:
        out: Tensor = copy.deepcopy(self)(x, keep)
        return out


CAUGHT = (
    (DefinedByItself, "check_reference_stands_alone"),
    (DefinedByItsBase, "check_reference_stands_alone"),
    (DefinedByItsSteps, "check_reference_stands_alone"),
    (MapDefinedByItself, "check_fm_reference_stands_alone"),
    (MapDefinedByATwin, "check_fm_reference_stands_alone"),
)
