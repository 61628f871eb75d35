"""The worker of ``polyattn check --only TEXT``: the suite's own, which leaves out all but these.

Run with the texts as its arguments; the suite's worker, asked the same, plans the same checks.
"""

from __future__ import annotations

import difflib
import os
import signal
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from polyattn.errors import ConfigError
from polyattn.measure.jobs import serve
from polyattn.measure.worker import Event
from polyattn.testing.process.worker import COMMAND
from polyattn.testing.results import Result, Status

LEFT_OUT = "--only leaves it out"
Job = Callable[[Mapping[str, Any]], Iterator[Event]]


def command(texts: Sequence[str]) -> tuple[str, ...]:
    """The worker to be run for these texts; the suite's own where there are none."""
    return (*COMMAND[:-1], "polyattn.cli.check_only", *texts) if texts else COMMAND


def meant(texts: Sequence[str], ids: Collection[str]) -> set[str]:
    """The ids that are meant: each text is an id, or else a name, or else a part of some ids.

    Raises: ConfigError for a text that means none, with the nearest ids.
    """
    found = set[str]()
    for text in texts:
        named = {id for id in ids if id.partition("[")[0] == text}
        hit = {text} & set(ids) or named or {id for id in ids if text in id}
        if not hit:
            raise ConfigError(f"--only {text}: no such check; {_nearest(text, ids)}")
        found |= hit
    return found


def _nearest(text: str, ids: Collection[str]) -> str:
    known = dict.fromkeys([*(id.partition("[")[0] for id in ids), *ids])
    near = difflib.get_close_matches(text, known, n=3, cutoff=0.5)
    if near:
        return f"did you mean {' or '.join(map(repr, near))}?"
    return f"ids look like {next(iter(ids), 'check_x')!r}, and --json lists them all"


def only(texts: Sequence[str], job: Job) -> Job:
    """The suite's job ``check``, with the other checks answered at once: they are not run."""

    def check(asked: Mapping[str, Any]) -> Iterator[Event]:
        request, ids, chosen = dict(asked), list[str](), set[str]()
        for event in job(request):
            if event["event"] == "planned":
                ids = event["ids"]
                try:
                    chosen = meant(texts, ids)
                except ConfigError as error:
                    yield {"event": "wrong", "reason": str(error)}
                    return
                yield event
                left = [_left_out(id) for id in ids if id not in chosen]
                yield from ({"event": "result", "result": row} for row in left)
                # The job reads what was answered earlier when it goes on from here.
                request["earlier"] = [*request["earlier"], *left]
            elif event["event"] == "verdict" and len(chosen) < len(ids):
                told = f"{len(chosen)} of {len(ids)} checks were run, as --only asks"
                yield {**event, "text": told}
            else:
                yield event

    return check


def _left_out(id: str) -> dict[str, Any]:
    return Result(id=id, status=Status.NOT_RUN, reason=LEFT_OUT).as_json()


def main() -> None:
    """Serve on the standard streams, as ``polyattn.testing.process.jobs`` does."""
    from polyattn.testing.process import jobs

    answers, requests = os.fdopen(os.dup(1), "w"), os.fdopen(os.dup(0))
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(requests, answers, {"check": only(sys.argv[1:], jobs._check)})


if __name__ == "__main__":
    main()
