"""How the program is interrupted: by Ctrl-C, SIGTERM (``timeout``, a build server) and SIGHUP."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

QUIET = 10.0
"""Seconds after an interruption in which another is not heard: what was begun is ended then."""


@contextmanager
def interruptible() -> Iterator[None]:
    """In the block each of these signals raises KeyboardInterrupt, and what was begun is ended.

    More of them, from an impatient user, do not break that off. After a block that was interrupted
    none is heard: it is the program's last. A signal that is ignored already stays so, as after
    ``nohup``; so do all of them in another thread than the main one.
    """
    last: float | None = None

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal last
        if last is None or time.monotonic() > last + QUIET:
            last = time.monotonic()
            raise KeyboardInterrupt

    before = _heard()
    _set(dict.fromkeys(before, interrupt))
    try:
        yield
    finally:
        _set(before if last is None else dict.fromkeys(before, signal.SIG_IGN))


@contextmanager
def undisturbed() -> Iterator[None]:
    """None of these signals is heard in the block, which is short: it cleans up."""
    before = _handlers()
    _set(dict.fromkeys(before, signal.SIG_IGN))
    try:
        yield
    finally:
        _set(before)


def _heard() -> dict[signal.Signals, Any]:
    """The handlers of those signals that are treated in the usual way."""
    usual = (signal.SIG_DFL, signal.default_int_handler)
    return {number: handler for number, handler in _handlers().items() if handler in usual}


def _handlers() -> dict[signal.Signals, Any]:
    """The handlers of these signals: of those that the system has, where they can be changed."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    names = [name for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    found = {signal.Signals[name]: signal.getsignal(signal.Signals[name]) for name in names}
    return {number: handler for number, handler in found.items() if handler is not None}


def _set(handlers: Mapping[signal.Signals, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)
