"""Modules and models of kinds that are met, all right, none with polyattn in mind."""

from __future__ import annotations

import random

import torch
import torch.nn.functional as F
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


class RestsAtRandom(things_modules.Attention):
    """Stochastic depth: in training a layer rests now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(things_modules.Attention() for _ in range(3))

    def forward(self, x, key_padding_mask=None):
        x = super().forward(x, key_padding_mask)
        for layer in self.layers:
            if not (self.training and random.random() < 0.5):
                x = x + layer(x, key_padding_mask)
        return x


class DropsSamples(RestsAtRandom):
    """The same by torch's generator, the whole branch at once."""

    def forward(self, x, key_padding_mask=None):
        for layer in self.layers:
            if not (self.training and torch.rand(()) < 0.8):
                x = x + layer(x, key_padding_mask)
        return x + things_modules.Attention.forward(self, x, key_padding_mask)


class Experts(things_modules.Attention):
    """A mixture: each token goes to the expert that it likes best, the others get nothing."""

    def __init__(self) -> None:
        super().__init__()
        width = things_modules.WIDTH
        self.router = nn.Linear(width, 8)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(8))

    def forward(self, x, key_padding_mask=None):
        x = x + super().forward(x, key_padding_mask)
        odds, chosen = self.router(x).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            own = chosen == number
            if own.any():
                out[own] = expert(x[own]) * odds[own][:, None]
        return x + out


class StartsAtZero(things_modules.Causal):
    """The output projection is zero until it learns."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)


class GatedAtZero(things_modules.Attention):
    """ReZero: a residual, and a gate of zero before the branch."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(()))

    def forward(self, x, key_padding_mask=None):
        return x + self.gate * super().forward(x, key_padding_mask)


class ScaledFaintly(things_modules.Causal):
    """LayerScale."""

    def __init__(self) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((things_modules.WIDTH,), 1e-6))

    def forward(self, x, key_padding_mask=None):
        return x + self.gamma * super().forward(x, key_padding_mask)


class SequenceFirstAtZero(things_modules.SequenceFirst):
    """Which dimension is the batch shows only once the projection has learnt."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.zeros_(self.attention.out_proj.weight)


class Shifted(things_modules.Causal):
    """Strictly past: each output is what the one before would be, the first is zero."""

    def forward(self, x, key_padding_mask=None):
        return F.pad(super().forward(x, key_padding_mask), (0, 0, 1, -1))


class HeadOfZero(things_models.Model):
    """The output head starts at zero."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.zeros_(self.head.weight)


class RoundedVocabulary(things_models.Model):
    """More logits than ids, -inf for what is no id, and in the middle as well."""

    def forward(self, ids, attention_mask=None, past_key_values=None, use_cache=False):
        logits, cache = super().forward(ids, attention_mask, past_key_values, use_cache=True)
        logits = F.pad(logits, (0, 9), value=-torch.inf)
        logits[..., 5] = -torch.inf
        return (logits, cache) if use_cache else logits


class RefusesInItsOwnWords(things_models.Model):
    def forward(self, ids):
        if ids.shape[1] > things_models.LONGEST:
            raise ValueError("exceeds the context window")
        return super().forward(ids)


temperature_made_once = LearnsItsTemperature()
"""An object, whose parameters a check changes: there is no class to make another of."""

MODULES = (
    LearnsItsTemperature,
    RestsAtRandom,
    DropsSamples,
    Experts,
    StartsAtZero,
    GatedAtZero,
    ScaledFaintly,
    SequenceFirstAtZero,
    Shifted,
)
MODELS = (ScalesItsLogits, HeadOfZero, RoundedVocabulary, RefusesInItsOwnWords)
