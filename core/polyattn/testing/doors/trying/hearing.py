"""Who hears whom: which outputs move when a position is changed."""

from __future__ import annotations

import torch
from torch import Tensor

from polyattn.testing.doors.trying.trial import Trial


def hearing(trial: Trial, length: int) -> Tensor | None:
    """Which output moves when a position is changed: (length, length) bool, [output, position]."""
    subject = trial.subject
    x = subject.draw(1, length)
    before = trial.tried(x)
    if before is None or not bool(before.isfinite().all()):
        return None
    columns = []
    for j in range(length):
        after = trial.tried(subject.changed(x, slice(j, j + 1)))
        if after is None:
            return None
        moved = (after - before).abs().amax(-1)[0]
        columns.append(moved > 1e-6 * max(1.0, float(before.abs().max())))
    return torch.stack(columns, 1)


def mixing(trial: Trial, moved: Tensor) -> bool:
    """Whether some position hears another; says so where none does."""
    mixes = bool((moved.triu(1) | moved.tril(-1)).any())
    if not mixes and len(moved) > 1:
        trial.notes.append("no position hears another")
        trial.subject.mixes = False
    return mixes


def say_of_hearing(trial: Trial, moved: Tensor | None) -> bool:
    """Say who hears whom; whether it is to be taken for causal."""
    if moved is None:
        return False
    length = len(moved)
    above = int(moved.triu(1).sum())
    below = int(moved.tril(-1).sum())
    if not mixing(trial, moved):
        return False
    if not above:
        trial.notes.append("no output hears a later position: causal")
        return True
    if 2 * above <= below:
        trial.notes.append(
            f"{above} of {length * (length - 1) // 2} pairs hear what comes later: taken to be "
            f"meant causal"
        )
        return True
    trial.notes.append("outputs hear later positions: not causal")
    return False
