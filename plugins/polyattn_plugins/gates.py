"""Squeeze-and-excitation: each channel of a feature map scaled by a gate computed from all.

    y = x * sigmoid(W2 relu(W1 s + b1) + b2),     s = mean of x over its pixels

Paper: Hu et al., Squeeze-and-Excitation Networks, https://arxiv.org/abs/1709.01507.

Deviations:
- the hidden width is ``max(min_width, round(channels * ratio))``, so it is never zero, which
  would make the gate a constant;
- in padded batches the mean is over real pixels only.

Cost: linear in the pixels: one pass over x to read and one to write. Memory: one copy of x.

When not to use it: where what matters is *where* in the map something is; the gate is the same for
every pixel.
"""

from __future__ import annotations

import pydantic
import torch
from torch import Tensor, nn

from polyattn import FeatureMapAttention, FeatureMapCapabilities, Options, Support, kit

__all__ = ["SqueezeExcitation"]


class SqueezeExcitation(FeatureMapAttention):
    """A gate in (0, 1) for each channel, from the mean of every channel."""

    capabilities = FeatureMapCapabilities(
        keep=True,
        gate=(0.0, 1.0),
        symmetry="pixels",
        pooling={"avg"},
        devices={place: Support(forward_ad=True) for place in ("cpu", "cuda")},
        compiles="dynamic",
        exports="dynamic",
    )

    class Config(Options):
        """``ratio``: hidden width over channels. ``min_width``: the least hidden width."""

        ratio: float = pydantic.Field(default=0.0625, gt=0, le=1)
        min_width: int = pydantic.Field(default=1, ge=1)

    config: Config

    @classmethod
    def examples(cls) -> tuple[Config, ...]:
        return (cls.Config(), cls.Config(ratio=0.5))

    def build(self) -> None:
        channels = self.require_channels()
        width = max(self.config.min_width, round(channels * self.config.ratio))
        self.squeeze = nn.Linear(channels, width)
        self.excite = nn.Linear(width, channels)

    def attend(self, x: Tensor, keep: Tensor | None) -> Tensor:
        exact = kit.accumulation_dtype(x.dtype)
        pixels = tuple(range(2, x.ndim))
        if keep is None:
            mean = x.mean(dim=pixels, dtype=exact)
        else:
            total = x.masked_fill(~keep[:, None], 0.0).sum(dim=pixels, dtype=exact)
            count = keep.sum(dim=tuple(range(1, keep.ndim)))[:, None]
            mean = kit.safe_divide(total, count.to(exact))
        hidden = torch.relu(self._affine(self.squeeze, mean))
        gate = torch.sigmoid(self._affine(self.excite, hidden))
        return x * gate.to(x.dtype).reshape(*gate.shape, *(1 for _ in pixels))

    def reference(self, x: Tensor, keep: Tensor | None) -> Tensor:
        rows = []
        for b, sample in enumerate(x):
            pixels = sample.flatten(1)
            real = pixels if keep is None else pixels[:, keep[b].flatten()]
            mean = real.sum(1) / max(real.shape[1], 1)
            w1, b1, w2, b2 = (p.to(x.dtype) for p in self.parameters())
            hidden = (torch.einsum("wc,c->w", w1, mean) + b1).clamp(min=0)
            gate = 1 / (1 + torch.exp(-(torch.einsum("cw,w->c", w2, hidden) + b2)))
            rows.append((pixels * gate[:, None]).reshape(sample.shape))
        return torch.stack(rows)

    @staticmethod
    def _affine(layer: nn.Linear, x: Tensor) -> Tensor:
        """The layer in the dtype of x: the mean of a half-precision map is kept in float32."""
        bias: Tensor = layer.bias
        return nn.functional.linear(x, layer.weight.to(x.dtype), bias.to(x.dtype))
