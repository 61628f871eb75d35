"""What the tests of measuring plant: variants with known faults, and a comparison made up whole."""

import dataclasses

import torch

from polyattn import Capabilities, SequenceAttention, Support
from polyattn.measure.results import (
    Comparison,
    Learning,
    LengthRun,
    Machine,
    Measurement,
    ModelPlan,
    NGram,
    PassRun,
    Plan,
    Point,
    Proof,
    TaskPlan,
    TextRecord,
    Timing,
)

CLAIMS = Capabilities(masks=frozenset({"causal", "padding", "dense"}))


class Right(SequenceAttention):
    """Softmax by torch's own function; the faults below are small changes of it."""

    capabilities = CLAIMS

    def attend(self, q, k, v, mask, inputs):
        logits = q @ k.mT * self.scale_for(q.shape[-1])
        seen = mask.keep(q.shape[2], k.shape[2], device=q.device)
        return torch.softmax(logits.masked_fill(~seen, -torch.inf), -1) @ v


class WrongScale(Right):
    def attend(self, q, k, v, mask, inputs):
        return super().attend(q * 1.01, k, v, mask, inputs)


class WrongFarOut(Right):
    """Right up to 1,500 tokens, and it sees the future beyond."""

    def attend(self, q, k, v, mask, inputs):
        right = super().attend(q, k, v, mask, inputs)
        wrong = right.clone()
        wrong[:, :, 1500:] += 0.01 * v[:, :, -1:]
        return wrong


class WrongGradient(Right):
    """The right output, and half the gradient of the values."""

    def attend(self, q, k, v, mask, inputs):
        return super().attend(q, k, (v + v.detach()) / 2, mask, inputs)


class NotANumber(Right):
    def attend(self, q, k, v, mask, inputs):
        return super().attend(q, k, v, mask, inputs) * torch.nan


class ForwardOnly(Right):
    """Answers where no gradients are wanted, and only there."""

    capabilities = dataclasses.replace(CLAIMS, devices={"cpu": Support(backward=False)})


class WrongForwardOnly(ForwardOnly):
    def attend(self, q, k, v, mask, inputs):
        return super().attend(q * 1.01, k, v, mask, inputs)


class Raises(Right):
    def attend(self, q, k, v, mask, inputs):
        raise RuntimeError("planted\nfailure")


class Whole(Right):
    """Rows that do not stand alone: each is divided by the number of queries."""

    def attend(self, q, k, v, mask, inputs):
        return super().attend(q, k, v, mask, inputs) / q.shape[2]

    def reference(self, q, k, v, mask, inputs):
        return super().reference(q, k, v, mask, inputs) / q.shape[2]


MODEL = ModelPlan(
    layers=1,
    d_model=16,
    heads=2,
    norm="rmsnorm",
    feed_forward="gelu",
    width=32,
)
TASK = TaskPlan(
    context=16, position="rope", batch=4, steps=8, learning_rate=1e-2, warm_up=2, every=4
)
TASKS = {"text": TASK, "copy": TASK}


def plan(variants=("base", "fast"), lengths=(512, 2048), **changes):
    fields = {
        "variants": variants,
        "baseline": variants[0],
        "lengths": lengths,
        "heads": 2,
        "head_dim": 16,
        "threads": 1,
        "seed": 0,
        "seconds": 0.0,
        "full": False,
        "train": True,
        "seeds": (0,),
        "baseline_seeds": (1,),
        "model": MODEL,
        "tasks": TASKS,
        "ngrams": (1, 2),
        "text": TextRecord(
            source="book.txt", default=False, size=999, used=999, sha256="0" * 64, held_out=99
        ),
        "aim": None,
    }
    return Plan(**{**fields, **changes})


def timing(*seconds, peak=2**20):
    return Timing(wall=seconds, processor=seconds, peak=peak)


def pass_run(again, void=False):
    yardstick = (0.03, 0.03, 0.03)
    return PassRun(
        yardstick=yardstick,
        yardstick_wall=yardstick,
        again=again,
        drift=1.4 if void else 1.0,
        void=void,
        tries=1,
    )


def measured(name, length, seconds, peak=2**20):
    proof = Proof(
        passed=True,
        length=length,
        rows=256,
        errors={"output": 1e-7, "q": 2e-7},
        allowed={"output": 1e-6, "q": 1e-6},
    )
    samples = (seconds, seconds * 1.01, seconds * 1.02)
    return Measurement(
        variant=name,
        length=length,
        ran={"forward": name, "backward": name},
        proof=proof,
        forward=timing(*samples, peak=peak),
        backward=timing(*(3 * s for s in samples), peak=3 * peak),
    )


def length_run(length, *measurements, void=False):
    base = measurements[0]
    return LengthRun(
        length=length,
        measurements=measurements,
        forward=pass_run(base.forward, void),
        backward=pass_run(base.backward, void),
    )


def curve(name, task, *values, seed=0, **changes):
    points = tuple(Point(step=4 * i, value=v) for i, v in enumerate(values))
    return Learning(
        variant=name,
        task=task,
        seed=seed,
        points=points,
        final=values[-1],
        steps=points[-1].step,
        **changes,
    )


def comparison(names=("base", "fast"), **changes):
    """A whole comparison of two variants: the second is twice as fast and learns a bit less."""
    first, second = names
    fields = {
        "started": "2026-01-02T03:04:05+00:00",
        "seconds": 12.0,
        "complete": True,
        "plan": plan(names),
        "machine": Machine(
            system="Linux",
            processor="a processor",
            cores=2,
            device="cpu",
            dtype="float32",
            python="3.11",
            torch="2.13",
            polyattn="0.1",
            allocator={"MALLOC_MMAP_THRESHOLD_": "1"},
            threads=1,
        ),
        "lengths": tuple(
            length_run(n, measured(first, n, n / 1e5), measured(second, n, n / 2e5))
            for n in (512, 2048)
        ),
        "learning": (
            curve(first, "text", 8.0, 3.0, 2.5),
            curve(first, "text", 8.0, 3.1, 2.55, seed=1),
            curve(second, "text", 8.0, 3.5, 3.0, options={"left": 31}, sight=62),
            curve(first, "copy", 0.03, 0.5, 1.0, stopped=True),
            curve(first, "copy", 0.03, 0.5, 1.0, seed=1),
            curve(second, "copy", 0.03, 0.03, 0.04),
        ),
        "ngrams": (NGram(order=1, bits=3.34), NGram(order=2, bits=2.47)),
        "notes": ("a note",),
    }
    return Comparison(**{**fields, **changes})
