"""Gates that listen to what they should not, and maps that do not move as claimed."""

from __future__ import annotations

import torch
from tests.testing.broken_maps import DividesByAConstant, PlainGate, SumsThePixels
from torch import Tensor, nn
from torch.nn import functional as F

from polyattn import FeatureMapAttention, FeatureMapCapabilities


class SpatialGate(FeatureMapAttention):
    """y = x * sigmoid(conv5([max over channels, mean over channels]))."""

    capabilities = FeatureMapCapabilities(
        spatial_dims={2}, gate=(0.0, 1.0), symmetry="translation", pooling={"avg", "max"}
    )

    def build(self) -> None:
        self.conv = nn.Conv2d(2, 1, 5, padding=2)

    def attend(self, x: Tensor, keep: Tensor | None) -> Tensor:
        return x * torch.sigmoid(self.logits(torch.stack([x.amax(1), x.mean(1)], 1)))

    def logits(self, pooled: Tensor) -> Tensor:
        out: Tensor = self.conv(pooled)
        return out

    def reference(self, x: Tensor, keep: Tensor | None) -> Tensor:
        pooled = torch.stack([x.max(1).values, x.sum(1) / x.shape[1]], 1)
        padded = F.pad(pooled, (2, 2, 2, 2))
        height, width = x.shape[2:]
        total = self.conv.bias.reshape(1, 1, 1)
        for row in range(5):
            for column in range(5):
                seen = padded[:, :, row : row + height, column : column + width]
                weight = self.conv.weight[0, :, row, column]
                total = total + (seen * weight[:, None, None]).sum(1)
        return x / (1 + (-total).exp())[:, None]


class NoHiddenWidth(PlainGate):
    """What a hidden width of zero comes to: the bias alone."""

    def build(self) -> None:
        super().build()
        channels = self.require_channels()
        if channels < 4:
            self.down = nn.Linear(channels, 1)
            self.up = nn.Linear(1, channels)
            self.up.weight = nn.Parameter(torch.zeros(channels, 1))


class NothingAfterTheRelu(PlainGate):
    def pooled(self, x: Tensor, keep: Tensor | None) -> Tensor:
        return super().pooled(x, keep) * 0


class WeighsByPlace(PlainGate):
    """The first pixels count for more."""

    def pooled(self, x: Tensor, keep: Tensor | None) -> Tensor:
        flat = x.flatten(2)
        weights = torch.linspace(2, 1, flat.shape[2], dtype=x.dtype)
        return (flat * weights / weights.sum()).sum(2)


class FadesOut(PlainGate):
    """A gate of channels that is not the same for every pixel, by what the pixel holds."""

    def gated(self, x: Tensor, gate: Tensor) -> Tensor:
        return x * gate * torch.sigmoid(x)


class CoarseGate(SpatialGate):
    """Computed for blocks of two by two."""

    def logits(self, pooled: Tensor) -> Tensor:
        coarse = F.avg_pool2d(super().logits(pooled), 2, ceil_mode=True)
        return F.interpolate(coarse, size=pooled.shape[2:])


class AddsItsPlace(SpatialGate):
    def logits(self, pooled: Tensor) -> Tensor:
        rows = torch.arange(pooled.shape[2], dtype=pooled.dtype)[:, None]
        return super().logits(pooled) + 0.01 * rows


class NoMaximum(SpatialGate):
    """The maximum is computed, and the mean stands in its place."""

    def logits(self, pooled: Tensor) -> Tensor:
        return super().logits(pooled[:, 1:].expand(-1, 2, -1, -1))


class NoMean(SpatialGate):
    def logits(self, pooled: Tensor) -> Tensor:
        return super().logits(pooled[:, :1].expand(-1, 2, -1, -1))


class HearsTheMaximumToo(PlainGate):
    def pooled(self, x: Tensor, keep: Tensor | None) -> Tensor:
        return super().pooled(x, keep) + x.flatten(2).amax(2)


CAUGHT: tuple[tuple[type[FeatureMapAttention], str], ...] = (
    (NoHiddenWidth, "check_fm_gate_depends_on_input"),
    (NothingAfterTheRelu, "check_fm_gate_depends_on_input"),
    (WeighsByPlace, "check_fm_spatial_symmetry"),
    (FadesOut, "check_fm_spatial_symmetry"),
    (CoarseGate, "check_fm_spatial_symmetry"),
    (AddsItsPlace, "check_fm_spatial_symmetry"),
    (SumsThePixels, "check_fm_size_invariance"),
    (DividesByAConstant, "check_fm_size_invariance"),
    (NoMaximum, "check_fm_pooling_branches"),
    (NoMean, "check_fm_pooling_branches"),
    (HearsTheMaximumToo, "check_fm_pooling_branches"),
)
