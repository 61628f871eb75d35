"""Feature-map attention that cannot be exported, or whose tangents are lost."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from tests.testing.broken_maps import PlainGate
from torch import Tensor

from polyattn import Support


class Exported(PlainGate):
    """Right, and says that it exports."""

    capabilities = dataclasses.replace(PlainGate.capabilities, exports="dynamic")


class PoolsTheFirstSize(Exported):
    """Divides by a number of pixels that is read in Python: a number of the graph."""

    def pooled(self, x: Tensor, keep: Tensor | None) -> Tensor:
        return super().pooled(x, keep) * (int(x.shape[2]) / x.shape[2])


class OtherwiseWhenExported(Exported):
    def gated(self, x: Tensor, gate: Tensor) -> Tensor:
        return x * gate * (0.999 if torch.compiler.is_exporting() else 1.0)


class Dual(PlainGate):
    """Right, and says that it takes tangents."""

    capabilities = dataclasses.replace(
        PlainGate.capabilities, devices={"cpu": Support(forward_ad=True)}
    )


class PoolsWithoutTangents(Dual):
    def pooled(self, x: Tensor, keep: Tensor | None) -> Tensor:
        return super().pooled(torch.autograd.forward_ad.unpack_dual(x).primal, keep)


class AnswersTangents(PlainGate):
    """Claims no forward mode, and answers as if nothing had been asked."""

    def refusals(self, call: Any) -> Any:
        return super().refusals(dataclasses.replace(call, forward_ad=None))


RAISES = frozenset({PoolsTheFirstSize})
"""Their fault is that they raise; of all others something wrong must be seen."""

CAUGHT: tuple[tuple[type[PlainGate], str], ...] = (
    (PoolsTheFirstSize, "check_fm_export"),
    (OtherwiseWhenExported, "check_fm_export"),
    (PoolsWithoutTangents, "check_fm_forward_mode"),
    (AnswersTangents, "check_fm_forward_mode"),
)
"""Each with the check that must catch it, by name."""
