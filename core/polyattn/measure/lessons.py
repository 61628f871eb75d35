"""The two tasks that models learn.

- ``text``: the next byte of a text, judged in bits per byte on its held-out end.
- ``copy``: a random half repeated, judged by the share of the second half predicted right. Every
  answer lies ``context / 2 - 1`` tokens back, farther than a narrowed window sees through all
  layers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from polyattn.measure.plan import SYMBOLS
from polyattn.measure.results import TaskPlan

SOLVED = 0.995
"""A copy task with so large a share right is solved, and training stops."""

_JUDGED_COPIES = 64
_GLANCE = 64
IGNORED = -100
"""The target of a place that is not judged."""


class Lesson(Protocol):
    """A task: batches to learn from, and a judgement of what was learnt."""

    vocabulary: int

    def batch(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Ids and targets, (B, context) each; a target of -100 is not judged."""
        ...

    def judge(self, model: nn.Module, *, thorough: bool) -> float:
        """The held-out value; ``thorough`` for the last one, a sample of it for the curve."""
        ...

    def solved(self, value: float) -> bool: ...


@dataclass
class TextLesson:
    """Bytes of a text. train, held_out: (N,) integer tensors."""

    train: Tensor
    held_out: Tensor
    plan: TaskPlan
    vocabulary: int = 256

    def batch(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        context = self.plan.context
        last = len(self.train) - context
        starts = torch.randint(0, last, (self.plan.batch,), generator=generator)
        rows = self.train[starts[:, None] + torch.arange(context + 1)]
        return rows[:, :-1], rows[:, 1:]

    def judge(self, model: nn.Module, *, thorough: bool) -> float:
        """Bits per byte. Every byte but the first few has half a context or more before it. At a
        glance, only evenly spaced windows are judged."""
        context = min(self.plan.context, len(self.held_out) - 1)
        stride = max(1, context // 2)
        starts = torch.arange(0, len(self.held_out) - context, stride)
        if not thorough:
            starts = starts[:: max(1, len(starts) // _GLANCE)]
        judged = torch.ones(len(starts), context, dtype=torch.bool)
        judged[1:, : context - stride] = False
        bits, count = 0.0, 0
        for part in range(0, len(starts), _GLANCE):
            rows = self.held_out[starts[part : part + _GLANCE, None] + torch.arange(context + 1)]
            targets = rows[:, 1:].masked_fill(~judged[part : part + _GLANCE], IGNORED)
            logits = model(rows[:, :-1]).flatten(0, 1)
            bits += float(functional.cross_entropy(logits, targets.flatten(), reduction="sum"))
            count += int((targets != IGNORED).sum())
        return bits / count / math.log(2)

    def solved(self, value: float) -> bool:
        return False


@dataclass
class CopyLesson:
    """A random first half, repeated."""

    plan: TaskPlan
    vocabulary: int = SYMBOLS

    def batch(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return self._draw(self.plan.batch, generator)

    def judge(self, model: nn.Module, *, thorough: bool) -> float:
        # The same for every variant and seed.
        ids, targets = self._draw(_JUDGED_COPIES, torch.Generator().manual_seed(2**31 - 1))
        judged = targets != IGNORED
        right = (model(ids).argmax(-1) == targets) & judged
        return float(right.sum() / judged.sum())

    def solved(self, value: float) -> bool:
        return value >= SOLVED

    def _draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        half = self.plan.context // 2
        first = torch.randint(0, self.vocabulary, (count, half), generator=generator)
        whole = torch.cat([first, first], dim=1)
        targets = whole[:, 1:].clone()
        targets[:, : half - 1] = IGNORED
        return whole[:, :-1], targets
