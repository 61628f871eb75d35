"""Code of strangers: what it raises stays inside, and it is given so long and no longer."""

from __future__ import annotations

import dis
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Escaped(Exception):
    """What no ``except Exception`` catches, such as SystemExit, as an exception of that name."""


class TimeUp(BaseException):
    """The time of a stranger's code is over. No Exception, so that it does not catch it itself."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"it did not answer within {seconds:g} s")


@contextmanager
def contained() -> Iterator[None]:
    """Let nothing out of the block but exceptions, an interruption by the user, and ``TimeUp``.

    An interruption is the code's own where a ``raise`` of it made it, and in a process that does
    not listen to its user, as a worker.
    """
    try:
        yield
    except (Exception, TimeUp):
        raise
    except BaseException as error:
        if _by_the_user(error) and not _deaf():
            raise KeyboardInterrupt from error
        raise type(type(error).__name__, (Escaped,), {})(words_of(error)) from error


def words_of(error: BaseException) -> str:
    """What an exception says. One of strangers may raise another when it is asked."""
    try:
        with contained():
            return str(error)
    except Exception as another:
        return f"its message cannot be read, str() of it raised {type(another).__name__}"


def first_line(error: BaseException) -> str:
    """``ValueError: the first line of what it says``, or its type alone."""
    return ": ".join([type(error).__name__, *words_of(error).strip().splitlines()[:1]])


@contextmanager
def limited(seconds: float | None) -> Iterator[None]:
    """Raise ``TimeUp`` inside the block after so many seconds, where that can be done.

    A system without alarms, another thread than the main one and an alarm that is set already
    leave it without a limit; so does code that never comes back to the interpreter.
    """
    if seconds is None or not _can_alarm():
        yield
        return

    def ring(number: int, frame: FrameType | None) -> None:
        raise TimeUp(seconds)

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _by_the_user(error: BaseException | None) -> bool:
    """Whether it is an interruption, or came of one, that no statement ``raise`` made."""
    if error is None:
        return False
    if isinstance(error, KeyboardInterrupt) and not _raised_by_a_statement(error):
        return True
    return _by_the_user(error.__context__)


def _raised_by_a_statement(error: BaseException) -> bool:
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None:
        return False
    code = last.tb_frame.f_code.co_code
    return dis.opname[code[last.tb_lasti]] == "RAISE_VARARGS"


def _deaf() -> bool:
    return signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def _can_alarm() -> bool:
    if not hasattr(signal, "setitimer") or signal.getsignal(signal.SIGALRM) is None:
        return False
    in_main = threading.current_thread() is threading.main_thread()
    return in_main and signal.getitimer(signal.ITIMER_REAL)[0] == 0
