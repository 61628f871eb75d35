"""What code from elsewhere started and left running is ended with it, where Linux tells of it.

A worker is ended with its session. What outlives that (it has a session of its own, or the worker
ended by itself) would be given to the system's first process; meanwhile it is given to this one.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from polyattn.cli.interruption import undisturbed

PROC = Path("/proc")
SET, GET = 36, 37
"""PR_SET_CHILD_SUBREAPER and PR_GET_CHILD_SUBREAPER of linux/prctl.h."""
ROUNDS = 100
"""What is ended may leave children in its turn: so often it is looked for more."""


@contextmanager
def orphans_ended() -> Iterator[None]:
    """Afterwards no process is left that the block has started, or that one of those started.

    Where the system does not give orphans away, as on macOS, nothing is done.
    """
    if not _can_adopt():
        yield
        return
    before, adopted = _children(), _adopts()
    _adopt(True)
    try:
        yield
    finally:
        with undisturbed():
            _end_all_but(before)
            _adopt(adopted)


def _end_all_but(kept: set[int]) -> None:
    for _ in range(ROUNDS):
        left = _children() - kept
        if not left:
            return
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def _children() -> set[int]:
    """The processes whose parent is this one."""
    return {int(entry.name) for entry in PROC.glob("[0-9]*") if _parent(entry) == os.getpid()}


def _parent(process: Path) -> int:
    try:
        # The name before the state is in brackets, and may hold anything.
        return int((process / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return 0


def _can_adopt() -> bool:
    return PROC.joinpath("self/stat").exists() and hasattr(ctypes.CDLL(None), "prctl")


def _adopts() -> bool:
    adopts = ctypes.c_int()
    ctypes.CDLL(None).prctl(GET, ctypes.byref(adopts), 0, 0, 0)
    return bool(adopts.value)


def _adopt(adopts: bool) -> None:
    ctypes.CDLL(None).prctl(SET, int(adopts), 0, 0, 0)
