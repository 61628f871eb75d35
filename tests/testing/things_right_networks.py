"""Modules and models of kinds that are met, all right, none with polyattn in mind."""

from __future__ import annotations

import torch
from tests.testing import things_models, things_modules
from torch import nn


class LearnsItsTemperature(things_modules.Attention):
    """A parameter without dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(1.5))

    def weights(self, q, k, padding):
        return super().weights(q * self.temperature, k, padding)


class ScalesItsLogits(things_models.Model):
    """A parameter and a buffer without dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.register_buffer("shift", torch.tensor(0.25))

    def layer(self, x, mask, past):
        x, cache = super().layer(x, mask, past)
        return x * self.scale + self.shift, cache


temperature_made_once = LearnsItsTemperature()
"""An object, whose parameters a check changes: there is no class to make another of."""

MODULES = (LearnsItsTemperature,)
MODELS = (ScalesItsLogits,)
