"""Progress of a long command: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from polyattn.measure.comparison import Progress

_QUIET = 2.0
"""Seconds between plain lines, so that a log stays readable."""


@contextmanager
def follow(console: Console) -> Iterator[Callable[[Progress], None]]:
    """A listener that shows progress while the block runs."""
    if console.is_terminal:
        with _bar(console) as listener:
            yield listener
    else:
        yield _lines(console.file)


@contextmanager
def _bar(console: Console) -> Iterator[Callable[[Progress], None]]:
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    # Drawing costs processor time beside what is being timed: seldom is enough.
    with Bars(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=console,
        refresh_per_second=2,
        transient=True,
    ) as bars:
        task = bars.add_task("starting", total=1.0)
        yield lambda heard: bars.update(task, completed=heard.share, description=heard.text)


def _lines(file: IO[str]) -> Callable[[Progress], None]:
    started = time.monotonic()
    last = -_QUIET

    def listener(heard: Progress) -> None:
        nonlocal last
        now = time.monotonic() - started
        if now - last >= _QUIET:
            last = now
            # A log that nobody reads any more must not end what is being logged.
            with contextlib.suppress(OSError):
                print(f"{now:5.0f} s {heard.share:4.0%}  {heard.text}", file=file, flush=True)

    return listener
