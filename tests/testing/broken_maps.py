"""Squeeze-and-excitation written correctly, and wrong in one way each."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polyattn import FeatureMapAttention, FeatureMapCapabilities


class PlainGate(FeatureMapAttention):
    """y = x * sigmoid(W2 relu(W1 mean(x)))."""

    capabilities = FeatureMapCapabilities(gate=(0.0, 1.0))

    def build(self) -> None:
        channels = self.require_channels()
        self.down = nn.Linear(channels, self.hidden(channels))
        self.up = nn.Linear(self.hidden(channels), channels)

    def hidden(self, channels: int) -> int:
        return max(1, channels // 4)

    def attend(self, x: Tensor, keep: Tensor | None) -> Tensor:
        gate = torch.sigmoid(self.up(torch.relu(self.down(self.pooled(x)))))
        return self.gated(x, gate.reshape(gate.shape[0], -1, *[1] * (x.dim() - 2)))

    def pooled(self, x: Tensor) -> Tensor:
        return x.flatten(2).mean(2)

    def gated(self, x: Tensor, gate: Tensor) -> Tensor:
        return x * gate

    def reference(self, x: Tensor, keep: Tensor | None) -> Tensor:
        out = torch.empty_like(x)
        for b in range(x.shape[0]):
            means = torch.stack([channel.sum() / channel.numel() for channel in x[b]])
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

    def pooled(self, x: Tensor) -> Tensor:
        if not self.hidden(x.shape[1]):
            raise RuntimeError("weight of size [0, 1] given")
        return super().pooled(x)


class SumsThePixels(PlainGate):
    def pooled(self, x: Tensor) -> Tensor:
        return x.flatten(2).sum(2)


class AddsTheGate(PlainGate):
    def gated(self, x: Tensor, gate: Tensor) -> Tensor:
        return x + gate


class PoolsOverTheBatch(PlainGate):
    def pooled(self, x: Tensor) -> Tensor:
        return super().pooled(x).mean(0, keepdim=True).expand(x.shape[0], -1)


class NormalisesOverTheBatch(PlainGate):
    def pooled(self, x: Tensor) -> Tensor:
        pooled = super().pooled(x)
        return pooled - pooled.mean(0, keepdim=True)


CAUGHT: tuple[tuple[type[PlainGate], str], ...] = (
    (SqueezesTheMap, "check_fm_shape_grid"),
    (NoHiddenChannels, "check_fm_shape_grid"),
    (SumsThePixels, "check_fm_matches_reference"),
    (AddsTheGate, "check_fm_matches_reference"),
    (PoolsOverTheBatch, "check_fm_batch_independence"),
    (NormalisesOverTheBatch, "check_fm_batch_independence"),
)
"""Each with the check that must catch it, by name."""
