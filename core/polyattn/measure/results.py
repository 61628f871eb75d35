"""The result of a comparison as plain data: what ``compare.json`` holds and every page is made of.

Times are in seconds, memory in bytes, lengths in tokens, code lengths in bits per byte. A field
that is None was not measured, and a ``reason`` beside it says why.
"""

from __future__ import annotations

from typing import Literal

import pydantic

FORMAT = 2
"""Raised when a field of ``compare.json`` changes its meaning."""

UNFINISHED = "not finished"
"""The reason of a training that was interrupted."""

Task = Literal["text", "copy"]
Pass = Literal["forward", "backward"]
"""``backward`` is the forward pass with the backward pass that follows it."""

PASSES: tuple[Pass, ...] = ("forward", "backward")


class Record(pydantic.BaseModel):
    """Base of everything below: immutable, nothing unknown, NaN and infinities kept as such."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class Proof(Record):
    """The correctness check that precedes a timing.

    rows: how many query rows of ``length`` were compared with the definition in float64.
    errors, allowed: largest difference, and its bound, of "output" (with gradients and without,
    the larger one) and of the gradient of each input.
    """

    passed: bool
    length: int
    rows: int
    errors: dict[str, float] = {}
    allowed: dict[str, float] = {}
    reason: str = ""


class Timing(Record):
    """One pass of one variant at one length. wall, processor: every sample in seconds, in order.
    peak: the most bytes held at once beyond the inputs."""

    wall: tuple[float, ...]
    processor: tuple[float, ...]
    peak: int


class Measurement(Record):
    """One variant at one length. ran: which implementation answers each pass; one may answer only
    where no gradients are wanted."""

    variant: str
    length: int
    ran: dict[Pass, str] = {}
    reason: str = ""
    proof: Proof | None = None
    forward: Timing | None = None
    backward: Timing | None = None

    def timing(self, kind: Pass) -> Timing | None:
        return self.forward if kind == "forward" else self.backward


class PassRun(Record):
    """What was measured beside the variants in the rounds of one pass at one length.

    yardstick: seconds of a 1024-square float32 matrix product, one for each round.
    again: the baseline a second time, as if it were another variant. void: the yardstick moved.
    tries: how often the rounds were begun, because the run before was void.
    """

    yardstick: tuple[float, ...]
    yardstick_wall: tuple[float, ...]
    again: Timing | None
    drift: float
    void: bool
    tries: int


class LengthRun(Record):
    """All variants at one length, timed in turn in one process."""

    length: int
    measurements: tuple[Measurement, ...]
    forward: PassRun | None = None
    backward: PassRun | None = None

    def run(self, kind: Pass) -> PassRun | None:
        return self.forward if kind == "forward" else self.backward


class Point(Record):
    """One point of a learning curve: held-out value after so many steps."""

    step: int
    value: float


class Learning(Record):
    """One model trained on one task. text: held-out bits per byte, lower is better. copy: share
    of the second half that is predicted right, higher is better.

    options: what the variant was given beyond its defaults. sight: how many tokens back the whole
    model can see, None if without limit. stopped: the task was solved before all steps were used.
    """

    variant: str
    task: Task
    seed: int
    options: dict[str, int] = {}
    sight: int | None = None
    points: tuple[Point, ...] = ()
    final: float | None = None
    seconds: float = 0.0
    parameters: int = 0
    steps: int = 0
    stopped: bool = False
    reason: str = ""


class NGram(Record):
    """A counting model with ``order`` bytes of context: bits per byte of the held-out bytes."""

    order: int
    bits: float


class TextRecord(Record):
    """The text, by what identifies it; its bytes are not kept."""

    source: str
    default: bool
    size: int
    used: int
    sha256: str
    held_out: int


class TaskPlan(Record):
    """How a model is trained on one task. context: tokens that it sees at once. position: how it
    knows where they are, in the words of a model config."""

    context: int
    position: str
    batch: int
    steps: int
    learning_rate: float
    warm_up: int
    every: int


class ModelPlan(Record):
    """The small language model that every variant is put into, in the words of a model config."""

    layers: int
    d_model: int
    heads: int
    norm: str
    feed_forward: str
    width: int


class Plan(Record):
    """Everything that decides what a run does: the same plan gives the same work.

    heads, head_dim: the geometry that is timed. seconds: wall time to spend on the rounds of one
    pass at one length. seeds: seeds that every variant learns with; baseline_seeds: further ones
    for the baseline alone, whose spread is the noise of learning. aim: bits per byte that the
    baseline is meant to reach on the text, None for other texts.
    """

    variants: tuple[str, ...]
    baseline: str
    lengths: tuple[int, ...]
    heads: int
    head_dim: int
    threads: int
    seed: int
    seconds: float
    full: bool
    train: bool
    seeds: tuple[int, ...]
    baseline_seeds: tuple[int, ...]
    model: ModelPlan
    tasks: dict[Task, TaskPlan]
    ngrams: tuple[int, ...]
    text: TextRecord
    aim: float | None


class Machine(Record):
    """Where and with what it ran."""

    system: str
    processor: str
    cores: int
    device: str
    dtype: str
    python: str
    torch: str
    polyattn: str
    allocator: dict[str, str]
    threads: int


class Comparison(Record):
    """A whole run. ``complete`` is False where it was interrupted; ``failures`` holds, for each
    variant that could not be measured at all, the reason."""

    format: int = FORMAT
    started: str
    seconds: float
    complete: bool
    plan: Plan
    machine: Machine | None = None
    failures: dict[str, str] = {}
    lengths: tuple[LengthRun, ...] = ()
    learning: tuple[Learning, ...] = ()
    ngrams: tuple[NGram, ...] = ()
    notes: tuple[str, ...] = ()

    def to_json(self) -> str:
        return self.model_dump_json(indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Comparison:
        return cls.model_validate_json(text)
