"""The whole of a comparison, from a plan to a result, one step after another.

First the counting models, which take a moment; then times and memory, on a machine that this run
leaves otherwise quiet: nothing is timed while anything trains. Then the learning, in two processes
of one thread each.
Whatever happens to one variant is written beside it, and the others go on. The result can be asked
for at any moment, so that an interrupted run keeps what it has.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from polyattn.measure.results import (
    Comparison,
    Learning,
    LengthRun,
    Machine,
    Measurement,
    NGram,
    Plan,
)
from polyattn.measure.text import Text, split
from polyattn.measure.training import Job, MakeWorker, Training, jobs_of
from polyattn.measure.worker import Event, Worker, WorkerFailed

_PATIENCE = 20.0
"""Seconds that void rounds may have cost for a short run to repeat them; a full run always does."""


@dataclass(frozen=True)
class Progress:
    """share: of the whole run that is done, 0 to 1. text: what is being done."""

    share: float
    text: str


Listener = Callable[[Progress], None]


@dataclass
class Run:
    """A comparison that is being made. make_worker: starts a worker with so many threads."""

    plan: Plan
    text: Text
    listen: Listener = lambda progress: None
    make_worker: MakeWorker = Worker
    _started: datetime = field(default_factory=lambda: datetime.now(UTC))
    _clock: float = field(default_factory=time.monotonic)
    _machine: Machine | None = None
    _lengths: dict[int, LengthRun] = field(default_factory=dict)
    _learning: dict[Job, Learning] = field(default_factory=dict)
    _ngrams: list[NGram] = field(default_factory=list)
    _notes: list[str] = field(default_factory=list)
    _complete: bool = False
    _done: float = 0.0

    def run(self) -> Comparison:
        """Do everything that the plan says. KeyboardInterrupt passes through; see ``result``."""
        if self.text.note:
            self._notes.append(self.text.note)
        with tempfile.TemporaryDirectory(prefix="polyattn-") as folder:
            parts = self._write_text(Path(folder)) if self.plan.train else {}
            self._time(parts)
            if parts:
                self._learn(parts)
        self._complete = True
        return self.result()

    def result(self) -> Comparison:
        """What there is by now."""
        return Comparison(
            started=self._started.isoformat(timespec="seconds"),
            seconds=round(time.monotonic() - self._clock, 1),
            complete=self._complete,
            plan=self.plan,
            machine=self._machine,
            failures=self._failures(),
            lengths=tuple(self._lengths[n] for n in sorted(self._lengths)),
            learning=tuple(
                self._learning[job] for job in jobs_of(self.plan) if job in self._learning
            ),
            ngrams=tuple(self._ngrams),
            notes=tuple(self._notes),
        )

    # Times and memory

    def _time(self, parts: dict[str, str]) -> None:
        worker = self.make_worker(self.plan.threads)
        try:
            self._tell("starting a worker", 0.0)
            for event in worker.events("machine", threads=self.plan.threads):
                self._machine = Machine.model_validate(event["result"])
            if parts:
                worker = self._count(parts, worker)
            for length in self.plan.lengths:
                worker = self._time_length(length, worker)
        finally:
            worker.close()

    def _time_length(self, length: int, worker: Worker) -> Worker:
        """Time one length. A variant that ends the process is left out, and the rest begins again
        in a new one. Returns the worker that is alive now."""
        names = list(self.plan.variants)
        lost: list[Measurement] = []
        share = self._share_of(length) / (4 * len(names) + 2)
        while names:
            current = ""
            try:
                for event in worker.events("time", **self._request(names, length)):
                    current = event.get("variant", "")
                    self._heard(event, length, lost, share)
                break
            except WorkerFailed as failure:
                worker.close()
                worker = self.make_worker(self.plan.threads)
                reason = f"at length {length}: {failure}"
                for name in [current] if current else names:
                    lost.append(Measurement(variant=name, length=length, reason=reason))
                names = [name for name in names if current and name != current]
        if lost:
            self._keep(LengthRun(length=length, measurements=()), lost)
        return worker

    def _heard(self, event: Event, length: int, lost: list[Measurement], share: float) -> None:
        if event["event"] == "begin":
            who = f"{event['variant']}: " if event["variant"] else ""
            self._tell(f"length {length:,}: {who}{event['what']}", share)
        elif event["event"] == "result":
            self._keep(LengthRun.model_validate(event["result"]), lost)

    def _keep(self, run: LengthRun, lost: list[Measurement]) -> None:
        """Keep the figures of a length, those of lost variants among them, in the plan's order."""
        known = self._lengths.get(run.length, run)
        found = {m.variant: m for m in (*known.measurements, *run.measurements, *lost)}
        measurements = tuple(found[name] for name in self.plan.variants if name in found)
        newest = run if run.measurements else known
        self._lengths[run.length] = newest.model_copy(update={"measurements": measurements})

    def _request(self, names: list[str], length: int) -> dict[str, object]:
        plan = self.plan
        return {
            "variants": names,
            "baseline": plan.baseline,
            "length": length,
            "heads": plan.heads,
            "head_dim": plan.head_dim,
            "threads": plan.threads,
            "seconds": plan.seconds,
            "patience": 1e9 if plan.full else _PATIENCE,
            "seed": plan.seed,
        }

    # Learning

    def _write_text(self, folder: Path) -> dict[str, str]:
        """The two parts of the text as files, for the workers to read."""
        train, held_out = split(self.text.data, self.plan.tasks["text"].context + 1)
        paths = {"train": folder / "train", "held_out": folder / "held_out"}
        paths["train"].write_bytes(train)
        paths["held_out"].write_bytes(held_out)
        return {name: str(path) for name, path in paths.items()}

    def _count(self, parts: dict[str, str], worker: Worker) -> Worker:
        """Count in a worker that runs anyway. Returns the worker that is alive now."""
        self._tell("counting n-grams", 0.0)
        try:
            for event in worker.events("count", orders=self.plan.ngrams, **parts):
                self._ngrams = [NGram.model_validate(row) for row in event["result"]]
        except WorkerFailed as failure:
            self._notes.append(f"no n-gram rows: {failure}")
            if not worker.alive:
                worker.close()
                worker = self.make_worker(self.plan.threads)
        return worker

    def _learn(self, parts: dict[str, str]) -> None:
        failures = self._failures()
        wanted = [job for job in jobs_of(self.plan) if job.variant not in failures]
        share = (1 - self._done) / max(1, len(wanted))
        training = Training(
            plan=self.plan,
            parts=parts,
            make_worker=self.make_worker,
            tell=lambda text, part: self._tell(text, part * share),
            learning=self._learning,
        )
        training.run(wanted)

    # Bookkeeping

    def _failures(self) -> dict[str, str]:
        """Variants for which no length could be measured, with the first reason."""
        failures = {}
        for name in self.plan.variants:
            tried = [m for run in self._lengths.values() for m in run.measurements]
            own = [m for m in tried if m.variant == name]
            if own and all(m.reason for m in own):
                failures[name] = own[0].reason
        return failures

    def _share_of(self, length: int) -> float:
        """The share of the run that goes into timing a length, by a rough law of its cost."""
        costs = {n: 6 + 40 * (n / 8192) ** 2 for n in self.plan.lengths}
        steps = sum(self.plan.tasks[job.task].steps for job in jobs_of(self.plan))
        learning = steps / 50 if self.plan.train else 0.0
        return costs[length] / (sum(costs.values()) + learning)

    def _tell(self, text: str, share: float) -> None:
        self._done = min(1.0, self._done + share)
        self.listen(Progress(self._done, text))
