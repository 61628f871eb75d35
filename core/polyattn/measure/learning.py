"""What a variant learns: a small causal language model around it, trained on a task.

Options that say how far back a variant sees (``left``, and ``right``) are made small enough here
for the copy task to lie beyond them; the result says so.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from polyattn.measure.lessons import IGNORED, CopyLesson, Lesson, TextLesson
from polyattn.measure.results import Learning, ModelPlan, Point, Record, Task, TaskPlan
from polyattn.measure.worker import Event

SIGHT = 15
"""Keys before its own that a windowed variant may see in one layer of the small model."""

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
        model(ids).flatten(0, 1), targets.flatten(), ignore_index=IGNORED
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
