"""Whether a network answers the same call twice in the same way, in evaluation and in training."""

from __future__ import annotations

import copy
from typing import Literal

import torch
from torch import nn

from polyattn.testing.checks.module_life import silence
from polyattn.testing.doors.trying.trial import Trial

Unsteady = Literal["its output is random", "its output changes from call to call"]


SEEDS = 12
"""What rests in one call of ten in training is met by so many seeds, more often than not."""


def unsteadiness(trial: Trial, seeds: int = 2) -> Unsteady | None:
    """Whether calls differ: at random where the same seed brings the same, else from memory."""
    x = trial.subject.draw(2, trial.subject.fit(6))
    first, again = trial.seeded(x, 0), trial.seeded(x, 0)
    if first is None or again is None:
        return None
    if not torch.equal(first, again):
        return "its output changes from call to call"
    for seed in range(1, seeds):
        other = trial.seeded(x, seed)
        if other is not None and not torch.equal(first, other):
            return "its output is random"
    return None


def training_is_plain(trial: Trial) -> bool:
    """Whether, dropout set to 0, nothing random and no normalisation by the batch is left."""
    function = trial.running.function
    if not isinstance(function, nn.Module):
        return False
    if any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in function.modules()):
        return False
    try:
        quiet = copy.deepcopy(function)
    except Exception:
        return False
    silence(quiet)
    quiet.train()
    kept, trial.running = trial.running, trial.running.of(quiet)
    try:
        return unsteadiness(trial, SEEDS) is None
    finally:
        trial.running = kept
