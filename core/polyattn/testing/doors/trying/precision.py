"""In which dtype a network computes."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from polyattn.testing.doors.trying.trial import Trial
from polyattn.testing.results import Mismatch

LARGE = 20_000_000
"""Parameters beyond which copies in float64 take too long."""


def settle_precision(trial: Trial) -> None:
    """Check in float64 where it computes in that, else in float32; says which."""
    subject = trial.subject
    if _size(trial.running.function) > LARGE:
        trial.notes.append("it is large: checked in float32")
        return
    for dtype in (torch.float64, torch.float32):
        subject.dtype = dtype
        trial.rebuilt()
        out = trial.tried(subject.draw(2, subject.fit(6)))
        if out is None:
            error = trial.error
        elif out.dtype != dtype:
            error = f"its output is {str(out.dtype).removeprefix('torch.')}"
        elif dtype == torch.float64 and not _smooth(trial):
            told = "float64 is taken, and computed in a narrower type: checked in float32"
            trial.notes.append(told)
            continue
        else:
            subject.wide = dtype == torch.float64
            return
        if dtype == torch.float64:
            trial.notes.append(f"float64 is not taken ({error}): checked in float32")
    subject.dtype = torch.float32
    trial.rebuilt()


def complex_parameters(trial: Trial) -> str:
    """Why nothing can be asked of complex parameters; empty where there are none.

    A complex buffer, such as a table of rotations, is doubted: it turns real alike, where a model
    is moved to a dtype, and not where it is not.
    """
    with trial.guarded():
        made = trial.subject.make()
    if not isinstance(made, nn.Module):
        return ""
    names = [name for name, x in made.named_parameters() if x.dtype.is_complex]
    if names:
        return (
            f"its parameters are complex ({', '.join(names[:3])}): the checks move it to real "
            f"dtypes, which drops their imaginary parts; keep them as torch.view_as_real gives them"
        )
    names = [name for name, x in made.named_buffers() if x.dtype.is_complex]
    if names:
        told = f"{', '.join(names[:3])} is complex: to(dtype) makes it real, here as elsewhere"
        trial.notes.append(told)
        trial.doubts.append(told)
    return ""


def _size(function: Any) -> int:
    parameters = function.parameters() if isinstance(function, nn.Module) else ()
    return sum(parameter.numel() for parameter in parameters)


def _smooth(trial: Trial) -> bool:
    """Whether a tiny step of everything that is real moves the output as little: no rounding."""
    subject = trial.subject
    function, x = trial.running.function, subject.draw(2, subject.fit(6))
    outs = []
    for factor in (1 - 1e-9, 1.0, 1 + 1e-9):
        try:
            moved = copy.deepcopy(function)
        except Exception:
            return False
        if isinstance(moved, nn.Module):
            with torch.no_grad():
                for parameter in moved.parameters():
                    parameter.mul_(factor)
        try:
            with trial.guarded(), torch.no_grad():
                outs.append(
                    trial.running.of(moved)(x * factor if x.is_floating_point() else x.clone())
                )
        except Mismatch:
            return False
    bend = (outs[0] + outs[2] - 2 * outs[1]).abs().max()
    return float(bend) < 1e-11 * max(1.0, float(outs[1].abs().max()))
