"""The two tasks and the training loop, at sizes that take no time."""

import math

import pytest
import torch
from tests.measure import planted

from polyattn.measure import lessons
from polyattn.measure.learning import SIGHT, LearningRequest, learn, narrowed, rate_at, train
from polyattn.measure.lessons import SYMBOLS, CopyLesson, TextLesson
from polyattn.measure.plan import copy_reach, make_plan, open_text
from polyattn.measure.results import Learning
from polyattn.registry import discover

PLAN = planted.TASKS["copy"]


def test_a_copy_repeats_its_first_half_and_judges_only_the_second():
    lesson = CopyLesson(PLAN)
    ids, targets = lesson.batch(torch.Generator().manual_seed(0))
    assert ids.shape == targets.shape == (PLAN.batch, PLAN.context - 1)
    judged = targets != -100
    assert judged.sum(1).tolist() == [PLAN.context // 2] * PLAN.batch
    assert int(ids.max()) < SYMBOLS
    reach = copy_reach(PLAN.context)
    for row, column in judged.nonzero().tolist():
        # The answer stands `reach` tokens before the token that has to predict it.
        assert targets[row, column] == ids[row, column - reach]


class Oracle(torch.nn.Module):
    """Predicts by looking ``back`` tokens behind, where it may."""

    def __init__(self, back):
        super().__init__()
        self.back = back

    def forward(self, ids):
        seen = torch.zeros_like(ids)
        seen[:, self.back :] = ids[:, : ids.shape[1] - self.back]
        return torch.nn.functional.one_hot(seen, SYMBOLS).float()


def test_only_who_reaches_far_enough_can_copy():
    lesson, reach = CopyLesson(PLAN), copy_reach(PLAN.context)
    assert lesson.judge(Oracle(reach), thorough=True) == 1.0
    assert lesson.judge(Oracle(reach - 1), thorough=True) < 0.3
    assert lesson.solved(1.0)
    assert not lesson.solved(0.9)


@pytest.mark.parametrize("full", [False, True])
def test_the_copy_lies_beyond_all_layers_of_the_narrowed_window(full):
    plan = make_plan(discover(), open_text(None), full=full)
    assert copy_reach(plan.tasks["copy"].context) > plan.model.layers * SIGHT


class Uniform(torch.nn.Module):
    def forward(self, ids):
        self.longest = max(getattr(self, "longest", 0), ids.shape[1])
        return torch.zeros(*ids.shape, 256)


class Certain(torch.nn.Module):
    """Knows that a byte is followed by the next one; a hundred to one."""

    def forward(self, ids):
        return torch.nn.functional.one_hot((ids + 1) % 256, 256) * math.log(100 * 255)


@pytest.mark.parametrize("thorough", [False, True])
def test_bits_per_byte_of_models_whose_bits_are_known(thorough):
    data = torch.arange(1000) % 256
    lesson = TextLesson(data, data, planted.TASKS["text"])
    uniform = Uniform()
    assert lesson.judge(uniform, thorough=thorough) == pytest.approx(8.0, abs=1e-3)
    assert uniform.longest == 16
    assert lesson.judge(Certain(), thorough=thorough) == pytest.approx(math.log2(1.01), abs=1e-4)


def test_thoroughly_nearly_every_byte_is_judged_once():
    counted = []

    class Counting(Uniform):
        def forward(self, ids):
            counted.append(ids.numel())
            return super().forward(ids)

    lesson = TextLesson(torch.zeros(99).long(), torch.zeros(200).long(), planted.TASKS["text"])
    lesson.judge(Counting(), thorough=True)
    # Windows of 16 that advance by 8.
    assert sum(counted) == 16 * len(range(0, 200 - 16, 8))


def test_a_held_out_end_shorter_than_the_context_is_judged_too():
    data = torch.zeros(5).long()
    lesson = TextLesson(data, data, planted.TASKS["text"])
    assert lesson.judge(Uniform(), thorough=True) == pytest.approx(8.0)


def test_batches_come_from_the_text_and_reach_its_end():
    data = torch.arange(18)
    lesson = TextLesson(data, data, planted.TASKS["text"])
    generator = torch.Generator().manual_seed(0)
    starts = set()
    for _ in range(20):
        ids, targets = lesson.batch(generator)
        assert torch.equal(ids + 1, targets)
        starts |= set(ids[:, 0].tolist())
    assert starts == {0, 1}


def test_the_learning_rate_warms_up_and_falls_to_a_tenth():
    plan = planted.TASKS["text"].model_copy(update={"steps": 100, "warm_up": 10})
    rates = [rate_at(step, plan) for step in range(1, 101)]
    assert rates[9] == 1.0
    assert rates == sorted(rates[:10]) + sorted(rates[10:], reverse=True)
    assert rates[-1] == pytest.approx(0.1)


class OneLogit(torch.nn.Module):
    def __init__(self, value=0.0):
        super().__init__()
        self.bias = torch.nn.Parameter(torch.full((SYMBOLS,), value))

    def forward(self, ids):
        return self.bias.expand(*ids.shape, SYMBOLS)


def test_a_loss_that_is_no_number_ends_the_training():
    with pytest.raises(RuntimeError, match="the loss was nan at step 1"):
        list(train(OneLogit(math.nan), CopyLesson(PLAN), PLAN, seed=0))


def test_points_lie_on_the_planned_steps():
    points = list(train(OneLogit(), CopyLesson(PLAN), PLAN, seed=0))
    assert [point.step for point in points] == [0, 4, 8]


def test_a_solved_task_ends_early(monkeypatch):
    monkeypatch.setattr(lessons, "SOLVED", 0.0)
    points = list(train(OneLogit(), CopyLesson(PLAN), PLAN, seed=0))
    assert [point.step for point in points] == [0, 4]


def test_windows_are_narrowed_and_nothing_else():
    assert narrowed("local_window") == {"left": SIGHT, "right": 0}
    assert narrowed("mistral_window") == {"left": SIGHT, "right": 0}
    assert narrowed("softmax") == {}
    assert narrowed("linear") == {}


def request(tmp_path, **changes):
    for part in ("train", "held_out"):
        (tmp_path / part).write_bytes(b"abcdefgh" * 40)
    fields = {
        "variant": "local_window",
        "task": "text",
        "seed": 0,
        "model": planted.MODEL,
        "plan": planted.TASKS["text"].model_copy(update={"steps": 24, "every": 12}),
        "train": str(tmp_path / "train"),
        "held_out": str(tmp_path / "held_out"),
    }
    return LearningRequest(**{**fields, **changes})


@pytest.mark.parametrize("variant", ["softmax", "local_window", "linear"])
def test_a_small_model_learns_a_simple_text(tmp_path, variant):
    *points, last = learn(request(tmp_path, variant=variant))
    found = Learning.model_validate(last["result"])
    assert [event["step"] for event in points] == [0, 12, 24]
    assert found.points[0].value > 7
    assert found.final < found.points[0].value - 1
    assert (found.steps, found.stopped, found.reason) == (24, False, "")
    assert found.sight == (SIGHT if variant == "local_window" else None)


def test_the_same_seed_gives_the_same_curve_and_another_one_another(tmp_path):
    curves = [[e.get("value") for e in learn(request(tmp_path, seed=n))] for n in (0, 0, 1)]
    assert curves[0] == curves[1]
    assert curves[0] != curves[2]
