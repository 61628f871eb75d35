"""What a variant learns: a small causal language model around it, on two tasks.

- ``text``: the next byte of a text, judged in bits per byte on its held-out end.
- ``copy``: a random half repeated, judged by the share of the second half predicted right. Every
  answer lies ``context / 2 - 1`` tokens back, farther than a window sees through all layers.

Options that say how far back a variant sees (``left``, and ``right``) are made small enough here
for the copy to lie beyond them; the result says so.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from polyattn.measure.results import Learning, ModelPlan, Point, Record, Task, TaskPlan
from polyattn.measure.worker import Event

SIGHT = 15
"""Keys before its own that a windowed variant may see in one layer of the small model."""

SYMBOLS = 32
"""Alphabet of the copy task; guessing gets one in so many right."""

SOLVED = 0.995
"""A copy task with so large a share right is solved, and training stops."""

_JUDGED_COPIES = 64
_GLANCE = 64
_IGNORED = -100
_LOWEST_RATE = 0.1


class LearningRequest(Record):
    """train, held_out: paths of the two parts of the text. plan: how ``task`` is trained."""

    variant: str
    task: Task
    seed: int
    model: ModelPlan
    plan: TaskPlan
    train: str
    held_out: str


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
            targets = rows[:, 1:].masked_fill(~judged[part : part + _GLANCE], _IGNORED)
            logits = model(rows[:, :-1]).flatten(0, 1)
            bits += float(functional.cross_entropy(logits, targets.flatten(), reduction="sum"))
            count += int((targets != _IGNORED).sum())
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
        judged = targets != _IGNORED
        right = (model(ids).argmax(-1) == targets) & judged
        return float(right.sum() / judged.sum())

    def solved(self, value: float) -> bool:
        return value >= SOLVED

    def _draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        half = self.plan.context // 2
        first = torch.randint(0, self.vocabulary, (count, half), generator=generator)
        whole = torch.cat([first, first], dim=1)
        targets = whole[:, 1:].clone()
        targets[:, : half - 1] = _IGNORED
        return whole[:, :-1], targets


def _text_lesson(request: LearningRequest) -> Lesson:
    train, held_out = (_read(path) for path in (request.train, request.held_out))
    return TextLesson(train, held_out, request.plan)


def _copy_lesson(request: LearningRequest) -> Lesson:
    return CopyLesson(request.plan)


LESSONS: dict[Task, Callable[[LearningRequest], Lesson]] = {
    "text": _text_lesson,
    "copy": _copy_lesson,
}


def _read(path: str) -> Tensor:
    with open(path, "rb") as file:
        data = bytearray(file.read())
    return torch.frombuffer(data, dtype=torch.uint8).long()


def narrowed(variant: str) -> dict[str, int]:
    """The options that keep a variant's sight short of the copy task: ``left`` at most ``SIGHT``
    and ``right`` zero where it has such options, else nothing."""
    from polyattn.factory import resolve

    config = resolve(variant).config
    fields = type(config).model_fields
    if "left" not in fields:
        return {}
    left = getattr(config, "left", None)
    options = {"left": SIGHT if left is None else min(left, SIGHT)}
    if "right" in fields:
        options["right"] = 0
    return options


def build_model(request: LearningRequest, options: dict[str, int], vocabulary: int) -> nn.Module:
    """The small causal language model around a variant."""
    from polyattn.models.build import build

    plan = request.model
    return build(
        {
            "model": "causal_lm",
            "vocab_size": vocabulary,
            "d_model": plan.d_model,
            "layers": plan.layers,
            "heads": plan.heads,
            "attention": {"name": request.variant, **options},
            "position": request.plan.position,
            "norm": plan.norm,
            "feed_forward": {"kind": plan.feed_forward, "width": plan.width},
            "max_length": request.plan.context,
        }
    )


def learn(request: LearningRequest) -> Iterator[Event]:
    """Train one model on one task. Yields its curve point by point, at last the ``Learning``."""
    started = time.process_time()
    torch.manual_seed(request.seed)
    options = narrowed(request.variant)
    lesson = LESSONS[request.task](request)
    model = build_model(request, options, lesson.vocabulary)
    points: list[Point] = []
    for point in train(model, lesson, request.plan, request.seed):
        points.append(point)
        yield {"event": "point", "step": point.step, "value": point.value}
    left = options.get("left")
    learning = Learning(
        variant=request.variant,
        task=request.task,
        seed=request.seed,
        options=options,
        sight=None if left is None else left * request.model.layers,
        points=tuple(points),
        final=points[-1].value,
        seconds=time.process_time() - started,
        parameters=sum(p.numel() for p in model.parameters()),
        steps=points[-1].step,
        stopped=points[-1].step < request.plan.steps,
    )
    yield {"event": "result", "result": learning.model_dump(mode="json")}


def train(model: nn.Module, lesson: Lesson, plan: TaskPlan, seed: int) -> Iterator[Point]:
    """Train for the planned steps, or until the task is solved; yields a point before the first
    step, at every ``plan.every`` steps, and at the end. Raises RuntimeError once the loss is no
    longer a number."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=plan.learning_rate, betas=(0.9, 0.98), weight_decay=0.01, fused=True
    )
    yield Point(step=0, value=judged(model, lesson, thorough=False))
    for step in range(1, plan.steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = plan.learning_rate * rate_at(step, plan)
        _step(model, lesson, optimizer, generator, step)
        last = step == plan.steps
        if last or step % plan.every == 0:
            value = judged(model, lesson, thorough=last)
            yield Point(step=step, value=value)
            if lesson.solved(value):
                return


def rate_at(step: int, plan: TaskPlan) -> float:
    """Share of the learning rate: a linear warm-up, then half a cosine down to a tenth."""
    if step <= plan.warm_up:
        return step / plan.warm_up
    way = (step - plan.warm_up) / max(1, plan.steps - plan.warm_up)
    return _LOWEST_RATE + (1 - _LOWEST_RATE) * 0.5 * (1 + math.cos(math.pi * way))


def _step(
    model: nn.Module,
    lesson: Lesson,
    optimizer: torch.optim.Optimizer,
    generator: torch.Generator,
    step: int,
) -> None:
    ids, targets = lesson.batch(generator)
    loss = functional.cross_entropy(
        model(ids).flatten(0, 1), targets.flatten(), ignore_index=_IGNORED
    )
    value = float(loss.detach())
    if not math.isfinite(value):
        raise RuntimeError(f"the loss was {value} at step {step}")
    optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def judged(model: nn.Module, lesson: Lesson, *, thorough: bool) -> float:
    """The lesson's judgement of a model in evaluation mode, without gradients."""
    model.eval()
    try:
        with torch.no_grad():
            return lesson.judge(model, thorough=thorough)
    finally:
        model.train()
