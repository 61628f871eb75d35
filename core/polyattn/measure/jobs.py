"""What a worker can do, and its side of the protocol: ``python -m polyattn.measure.jobs``."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any

from polyattn.measure.worker import Event, end_with_parent


def _machine(request: Mapping[str, Any]) -> Iterator[Event]:
    from polyattn.measure.machine import describe_machine

    machine = describe_machine(request["threads"])
    yield {"event": "result", "result": machine.model_dump(mode="json")}


def _time(request: Mapping[str, Any]) -> Iterator[Event]:
    from polyattn.measure.timing import TimingRequest, measure_length

    yield from measure_length(TimingRequest.model_validate(request))


def _learn(request: Mapping[str, Any]) -> Iterator[Event]:
    from polyattn.measure.learning import LearningRequest, learn

    yield from learn(LearningRequest.model_validate(request))


def _count(request: Mapping[str, Any]) -> Iterator[Event]:
    from polyattn.measure import ngrams

    train, held_out = (_bytes_of(request[part]) for part in ("train", "held_out"))
    found = ngrams.bits_per_byte(train, held_out, tuple(request["orders"]))
    yield {"event": "result", "result": [{"order": k, "bits": v} for k, v in found.items()]}


def _bytes_of(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


Jobs = Mapping[str, Callable[[Mapping[str, Any]], Iterator[Event]]]
JOBS: Jobs = {
    "machine": _machine,
    "time": _time,
    "learn": _learn,
    "count": _count,
}


def serve(requests: IO[str], answers: IO[str], jobs: Jobs = JOBS) -> None:
    """Read requests, one JSON object a line, until there are no more; answer each with events."""

    def send(event: Event) -> None:
        answers.write(json.dumps(event) + "\n")
        answers.flush()

    for line in requests:
        request = json.loads(line)
        job = request.pop("job")
        try:
            for event in jobs[job](request):
                send(event)
        except Exception as error:
            said = " ".join(str(error).split())
            send({"event": "failed", "reason": f"{type(error).__name__}: {said}"})
        else:
            send({"event": "done"})


def main() -> None:
    """Serve on standard input and output. A plugin that prints must not break the protocol: what
    it writes to standard output goes to standard error."""
    end_with_parent()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(sys.stdin, answers)


if __name__ == "__main__":
    main()
