"""Squeeze-and-excitation written correctly, and wrong in one way each."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polyattn import FeatureMapAttention, FeatureMapCapabilities, Support


class PlainGate(FeatureMapAttention):
    """y = x * sigmoid(W2 relu(W1 mean(x)))."""

    capabilities = FeatureMapCapabilities(
        keep=True, gate=(0.0, 1.0), symmetry="pixels", pooling={"avg"}, compiles="dynamic"
    )

    def build(self) -> None:
        channels = self.require_channels()
        self.down = nn.Linear(channels, self.hidden(channels))
        self.up = nn.Linear(self.hidden(channels), channels)

    def hidden(self, channels: int) -> int:
        return max(1, channels // 4)

    def attend(self, x: Tensor, keep: Tensor | None) -> Tensor:
        gate = torch.sigmoid(self.up(torch.relu(self.down(self.pooled(x, keep)))))
        return self.gated(x, gate.reshape(gate.shape[0], -1, *[1] * (x.dim() - 2)))

    def pooled(self, x: Tensor, keep: Tensor | None) -> Tensor:
        if keep is None:
            return x.flatten(2).mean(2)
        total = x.masked_fill(~keep[:, None], 0.0).flatten(2).sum(2)
        return total / keep.flatten(1).sum(1, keepdim=True).clamp(min=1)

    def gated(self, x: Tensor, gate: Tensor) -> Tensor:
        return x * gate

    def reference(self, x: Tensor, keep: Tensor | None) -> Tensor:
        out = torch.empty_like(x)
        for b in range(x.shape[0]):
            real = torch.ones_like(x[b, 0], dtype=torch.bool) if keep is None else keep[b]
            means = torch.stack([c[real].sum() / max(int(real.sum()), 1) for c in x[b]])
            hidden = (self.down.weight * means).sum(1) + self.down.bias
            logits = (self.up.weight * hidden.clamp(min=0)).sum(1) + self.up.bias
            gates = 1 / (1 + (-logits).exp())
            out[b] = torch.stack([c * g for c, g in zip(x[b], gates, strict=True)])
        return out


class SqueezesTheMap(PlainGate):
    def gated(self, x: Tensor, gate: Tensor) -> Tensor:
        return (x * gate).squeeze()


class NoHiddenChannels(PlainGate):
    """A hidden width of zero for few channels: its convolution has nothing to convolve."""

    def hidden(self, channels: int) -> int:
        return channels // 4

    def pooled(self, x: Tensor, keep: Tensor | None) -> Tensor:
        if not self.hidden(x.shape[1]):
            raise RuntimeError("weight of size [0, 1] given")
        return super().pooled(x, keep)


class SumsThePixels(PlainGate):
    def pooled(self, x: Tensor, keep: Tensor | None) -> Tensor:
        return x.flatten(2).sum(2)


class DividesByAConstant(PlainGate):
    """A mean over as many pixels as there are in the images that it was written for."""

    def pooled(self, x: Tensor, keep: Tensor | None) -> Tensor:
        return x.flatten(2).sum(2) / 35


class AddsTheGate(PlainGate):
    def gated(self, x: Tensor, gate: Tensor) -> Tensor:
        return x + gate


class PoolsOverTheBatch(PlainGate):
    def pooled(self, x: Tensor, keep: Tensor | None) -> Tensor:
        return super().pooled(x, keep).mean(0, keepdim=True).expand(x.shape[0], -1)


class NormalisesOverTheBatch(PlainGate):
    def pooled(self, x: Tensor, keep: Tensor | None) -> Tensor:
        pooled = super().pooled(x, keep)
        return pooled - pooled.mean(0, keepdim=True)


class NarrowsChannelsLast(PlainGate):
    """Takes another path for another memory format, in float32."""

    def pooled(self, x: Tensor, keep: Tensor | None) -> Tensor:
        pooled = super().pooled(x, keep)
        return pooled if x.is_contiguous() else pooled.float().to(x.dtype)


class ZerosCountAsPixels(PlainGate):
    def pooled(self, x: Tensor, keep: Tensor | None) -> Tensor:
        return super().pooled(x if keep is None else x * keep[:, None], None)


class KeepOfTheFirstSample(PlainGate):
    def pooled(self, x: Tensor, keep: Tensor | None) -> Tensor:
        return super().pooled(x, None if keep is None else keep[:1].expand(keep.shape))


class GateOfTwo(PlainGate):
    def gated(self, x: Tensor, gate: Tensor) -> Tensor:
        return x * gate * 2


class GateByTanh(PlainGate):
    def gated(self, x: Tensor, gate: Tensor) -> Tensor:
        return x * (2 * gate - 1)


class ReadsAPixel(PlainGate):
    def gated(self, x: Tensor, gate: Tensor) -> Tensor:
        return x * gate if float(gate.max()) < 2 else x


class OtherwiseWhenCompiled(PlainGate):
    def gated(self, x: Tensor, gate: Tensor) -> Tensor:
        return x * gate * (0.999 if torch.compiler.is_compiling() else 1.0)


class IgnoresKeep(PlainGate):
    capabilities = FeatureMapCapabilities()

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        return self.attend(x, None)


class TakesAnyMap(PlainGate):
    """Claims images in float64, and refuses nothing else."""

    capabilities = FeatureMapCapabilities(
        spatial_dims={2}, keep=True, devices={"cpu": Support(dtypes={torch.float64})}
    )

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        return self.attend(x, keep)


RAISES = frozenset({NoHiddenChannels, ReadsAPixel})
"""Their fault is that they raise; of all others something wrong must be seen."""

CAUGHT: tuple[tuple[type[PlainGate], str], ...] = (
    (SqueezesTheMap, "check_fm_shape_grid"),
    (NoHiddenChannels, "check_fm_shape_grid"),
    (SumsThePixels, "check_fm_matches_reference"),
    (AddsTheGate, "check_fm_matches_reference"),
    (PoolsOverTheBatch, "check_fm_batch_independence"),
    (NormalisesOverTheBatch, "check_fm_batch_independence"),
    (NarrowsChannelsLast, "check_fm_shape_grid"),
    (ZerosCountAsPixels, "check_fm_masked_region"),
    (KeepOfTheFirstSample, "check_fm_masked_region"),
    (GateOfTwo, "check_fm_gate_bounds"),
    (GateByTanh, "check_fm_gate_bounds"),
    (IgnoresKeep, "check_fm_unsupported_raises"),
    (TakesAnyMap, "check_fm_unsupported_raises"),
    (ReadsAPixel, "check_fm_compile"),
    (OtherwiseWhenCompiled, "check_fm_compile"),
)
"""Each with the check that must catch it, by name."""
