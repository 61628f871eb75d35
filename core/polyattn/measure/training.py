"""Training the models of a comparison: two processes of one thread each, side by side.

What happens to one model is written into its record, and the others go on. The records are kept
up to date, point by point, so that an interrupted run has the curves until then.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from polyattn.measure.results import UNFINISHED, Learning, Plan, Point, Task
from polyattn.measure.worker import Worker, WorkerFailed

MakeWorker = Callable[[int], Worker]

_SIDE_BY_SIDE = 2
_POLL = 0.1
_TASKS: tuple[Task, ...] = ("text", "copy")


@dataclass(frozen=True)
class Job:
    """One model to be trained on one task."""

    variant: str
    task: Task
    seed: int

    @property
    def label(self) -> str:
        return f"{self.variant} learns {self.task} (seed {self.seed})"


def jobs_of(plan: Plan) -> list[Job]:
    """Everything to be trained, the long task first, so that both processes end together."""
    jobs = []
    for task in _TASKS:
        for name in plan.variants:
            seeds = plan.seeds
            seeds += plan.baseline_seeds if name == plan.baseline else ()
            jobs += [Job(name, task, seed) for seed in seeds]
    return jobs


@dataclass
class Training:
    """parts: paths of the text's two parts. tell: hears what is done, and how much of a job that
    was. learning: the records, written to as they grow."""

    plan: Plan
    parts: dict[str, str]
    make_worker: MakeWorker
    tell: Callable[[str, float], None]
    learning: dict[Job, Learning]

    def run(self, jobs: Iterable[Job]) -> None:
        """Train them all. Workers end when this is left, however it is left."""
        waiting = deque(jobs)
        slots = min(_SIDE_BY_SIDE, os.cpu_count() or 1, len(waiting))
        workers: dict[int, Worker] = {}
        running: dict[int, Job] = {}
        try:
            while waiting or running:
                for slot in range(slots):
                    if slot not in running and waiting:
                        if slot not in workers:
                            workers[slot] = self.make_worker(1)
                        running[slot] = waiting.popleft()
                        self._begin(workers[slot], running[slot])
                    if slot in running and self._has_ended(workers, slot, running[slot]):
                        del running[slot]
        finally:
            for worker in workers.values():
                worker.close()

    def _begin(self, worker: Worker, job: Job) -> None:
        self.learning[job] = Learning(
            variant=job.variant, task=job.task, seed=job.seed, reason=UNFINISHED
        )
        worker.start(
            "learn",
            variant=job.variant,
            task=job.task,
            seed=job.seed,
            model=self.plan.model.model_dump(),
            plan=self.plan.tasks[job.task].model_dump(),
            **self.parts,
        )

    def _has_ended(self, workers: dict[int, Worker], slot: int, job: Job) -> bool:
        """Hear one event of a running job, if there is one. Returns whether the job has ended."""
        worker = workers[slot]
        try:
            event = worker.next_event(_POLL)
        except WorkerFailed as failure:
            known = self.learning[job]
            self.learning[job] = known.model_copy(update={"reason": str(failure)})
            if not worker.alive:
                worker.close()
                del workers[slot]
            self.tell(f"{job.label}: {failure}", 1 - self._part(job))
            return True
        if event is None:
            return False
        if event["event"] == "point":
            self._mark(job, Point(step=event["step"], value=event["value"]))
        elif event["event"] == "result":
            left = 1 - self._part(job)
            self.learning[job] = Learning.model_validate(event["result"])
            self.tell(f"{job.label}: {self.learning[job].final:.3f} at the end", left)
        return bool(event["event"] == "done")

    def _mark(self, job: Job, point: Point) -> None:
        before, known = self._part(job), self.learning[job]
        update = {"points": (*known.points, point), "steps": point.step}
        self.learning[job] = known.model_copy(update=update)
        steps = self.plan.tasks[job.task].steps
        self.tell(
            f"{job.label}: step {point.step} of {steps}, {point.value:.3f}",
            self._part(job) - before,
        )

    def _part(self, job: Job) -> float:
        """The share of a job's steps that is done."""
        return self.learning[job].steps / self.plan.tasks[job.task].steps
