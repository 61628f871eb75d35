"""Gates written correctly that train on no single pixel."""

from __future__ import annotations

from tests.testing.broken_map_gates import SpatialGate
from torch import Tensor, nn


class NormalisedGate(SpatialGate):
    """A BatchNorm after the convolution, as CBAM has it: of one number, torch refuses to learn."""

    def build(self) -> None:
        super().build()
        self.norm = nn.BatchNorm2d(1)

    def logits(self, pooled: Tensor) -> Tensor:
        out: Tensor = self.norm(super().logits(pooled))
        return out

    def reference(self, x: Tensor, keep: Tensor | None) -> Tensor:
        norm = self.norm
        assert norm.running_mean is not None
        assert norm.running_var is not None
        plain = super().reference(x, keep) / x
        logits = (plain / (1 - plain)).log()
        scaled = (logits - norm.running_mean.to(x)) / (norm.running_var.to(x) + norm.eps).sqrt()
        return x / (1 + (-(scaled * norm.weight.to(x) + norm.bias.to(x))).exp())


MAPS = (NormalisedGate,)
"""To be checked like any other."""
