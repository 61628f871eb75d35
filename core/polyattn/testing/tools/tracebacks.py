"""Tracebacks without the suite's own frames: whose code raised is what its author wants to see."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import TypeVar

E = TypeVar("E", bound=BaseException)

SUITE = "polyattn.testing"
BETWEEN = ("polyattn", "torch", "contextlib", "functools", "_pytest", "pluggy")
"""Packages that stand before the code that is checked, where it is called."""


def without_the_suite(error: E) -> E:
    """The same exception; its traceback, and those of its causes, begin in the code checked.

    An exception that was raised in the suite itself, whose fault it may be, keeps all of it.
    """
    for link in _chain(error):
        frames = list(_frames(link.__traceback__))
        if frames and not _is_of(frames[-1], SUITE):
            link.__traceback__ = _joined([x for x in _own(frames) if not _is_of(x, SUITE)])
    return error


def told(error: BaseException) -> str:
    """The traceback of an exception as text, without the suite's frames."""
    return "".join(traceback.format_exception(without_the_suite(error))).rstrip()


def _own(frames: list[TracebackType]) -> list[TracebackType]:
    """From the first frame of the code that is checked on; all where none is its own."""
    first = (at for at, x in enumerate(frames) if not any(_is_of(x, name) for name in BETWEEN))
    return frames[next(first, 0) :]


def _is_of(entry: TracebackType, package: str) -> bool:
    name = entry.tb_frame.f_globals.get("__name__") or ""
    return name == package or name.startswith(f"{package}.")


def _frames(entry: TracebackType | None) -> Iterator[TracebackType]:
    while entry is not None:
        yield entry
        entry = entry.tb_next


def _joined(frames: list[TracebackType]) -> TracebackType | None:
    joined = None
    for entry in reversed(frames):
        joined = TracebackType(joined, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return joined


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The exception, what it came from, and so on."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__
