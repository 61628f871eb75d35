"""Worker processes: each with a known allocator, a known number of threads, and a way to die alone.

A fresh buffer of 32 MB costs page faults that exceed the work done in it, unless glibc is told to
keep its memory, and it listens only before a process starts. So nothing is timed in the process
that the user started. A worker that is killed (a variant may ask for more memory than there is)
takes nothing else with it.

The protocol is one JSON object a line. The parent writes one request, ``{"job": name, ...}``; the
worker answers with any number of events, ``{"event": ..., ...}``, and at last with ``{"event":
"done"}``, or ``{"event": "failed", "reason": ...}`` if the job raised. See ``jobs`` for the jobs.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import platform
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import IO, Any, Self

from polyattn.errors import PolyattnError

Event = dict[str, Any]

ALLOCATOR: Mapping[str, str] = {
    "MALLOC_MMAP_THRESHOLD_": str(2**34),
    "MALLOC_TRIM_THRESHOLD_": str(2**40),
    "MALLOC_TOP_PAD_": str(2**26),
}
"""glibc's switches: take memory from the heap instead of mapping it anew, and keep it."""

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_GRACE = 5.0
_TICK = 0.01
_SET_PDEATHSIG = 1
"""PR_SET_PDEATHSIG of linux/prctl.h."""
_LONGEST = 2**26
"""So many characters an event may have."""
_MOST_READ = 2**14
_TAIL = 300
"""So many characters are told of what a process wrote last."""


class WorkerFailed(PolyattnError):
    """A job raised, or its process died. One line that says which."""


def allocator_settings() -> dict[str, str]:
    """The allocator's switches as this process was started with them, to be kept with results."""
    if platform.libc_ver()[0] != "glibc":
        return {"allocator": "not glibc: page faults of fresh memory are part of every timing"}
    return {name: os.environ.get(name, "default") for name in ALLOCATOR}


def worker_environment(threads: int) -> dict[str, str]:
    """The environment of a worker with so many threads. Elsewhere than on glibc the switches mean
    nothing and are left out."""
    environment = dict(os.environ)
    if platform.libc_ver()[0] == "glibc":
        environment.update(ALLOCATOR)
    environment.update({name: str(threads) for name in _THREADS})
    # A worker must find the same polyattn, and the same plugins, as its parent.
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    return environment


def end_with_parent() -> None:
    """Called in a worker: it is ended when the thread that started it ends, even by SIGKILL, which
    leaves the parent no time to end it. Elsewhere than on Linux nothing is done."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


class Worker:
    """A process that does jobs, one after another. A context manager: leaving it ends the process.

    command: what to run, for tests; by default ``python -m polyattn.measure.jobs``.
    """

    def __init__(self, threads: int = 1, command: tuple[str, ...] | None = None) -> None:
        # Lives as long as the process; closed with it.
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            command or (sys.executable, "-m", "polyattn.measure.jobs"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=worker_environment(threads),
            text=True,
            encoding="utf-8",
            # What is no text was not written by the worker; it is told below.
            errors="replace",
            # Ctrl-C is the parent's to hear: it decides what is still written.
            start_new_session=True,
        )
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def alive(self) -> bool:
        """Whether it runs. Where it does not, whatever it had started has been ended, too."""
        if self._process.returncode is None and self._has_ended():
            # The number of a group is nobody else's until its leader is waited for.
            self._end_group()
            self._process.wait()
        return self._process.returncode is None

    def start(self, job: str, **request: Any) -> None:
        """Send a request. Its events come from ``events`` or ``next_event``."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"job": job, **request}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise WorkerFailed(self._obituary()) from None

    def next_event(self, timeout: float | None = None) -> Event | None:
        """The next event of the running job, or None if none came within ``timeout`` seconds.

        Raises: WorkerFailed if the job failed, the process died, or something else than its events
        came: what it does from there on cannot be told, so it is ended.
        """
        try:
            line = self._lines.get(timeout=timeout)
        except queue.Empty:
            return None
        if line is None:
            raise WorkerFailed(self._obituary())
        event = _event(line)
        if event is None:
            self._kill()
            raise WorkerFailed(f"its code wrote into the suite's stream: {_shortened(line)!r}")
        if event["event"] == "failed":
            raise WorkerFailed(event["reason"])
        return event

    def events(self, job: str, **request: Any) -> Iterator[Event]:
        """Do one job and yield its events, without the closing one."""
        self.start(job, **request)
        while True:
            event = self.next_event()
            if event is not None:
                if event["event"] == "done":
                    return
                yield event

    def close(self) -> None:
        """End the process, whatever it is doing."""
        self._kill()
        self._reader.join(_GRACE)
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _has_ended(self) -> bool:
        """Whether it is over, without waiting for it where the system can tell."""
        if not hasattr(os, "waitid"):  # Windows, and macOS before Python 3.13
            return self._process.poll() is not None
        try:
            how = os.WEXITED | os.WNOHANG | os.WNOWAIT
            return os.waitid(os.P_PID, self._process.pid, how) is not None
        except ChildProcessError:
            return True

    def _ends_within(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while self.alive and time.monotonic() < until:
            time.sleep(_TICK)
        return not self.alive

    def _kill(self) -> None:
        if self.alive:
            self._end_group()
            self._process.kill()
        self._process.wait(_GRACE)

    def _end_group(self) -> None:
        """It leads a session of its own: whatever it has started goes with it."""
        with contextlib.suppress(OSError, AttributeError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _read(self) -> None:
        stdout = self._process.stdout
        assert stdout is not None
        # What floods the stream without a line break must not fill the parent's memory.
        for line in iter(lambda: stdout.readline(_LONGEST), ""):
            self._lines.put(line)
        self._lines.put(None)

    def _obituary(self) -> str:
        """Why the process is gone, in one line."""
        if not self._ends_within(_GRACE):
            self._kill()
            return "its process closed the stream that its answers go to"
        code = self._process.returncode
        if code >= 0:
            last = self._last_words()
            said = f": {last}" if last else ""
            return f"its process ended with exit code {code}{said}"
        name = signal.Signals(-code).name
        hint = " (most likely out of memory, or of its CPU time)" if name == "SIGKILL" else ""
        return f"its process was ended by {name}{hint}"

    def _last_words(self) -> str:
        """The last line on its standard error, which it may have flooded: the end of that."""
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - _MOST_READ))
        lines = self._errors.read(_MOST_READ).decode(errors="replace").strip().splitlines()
        return _shortened(lines[-1]) if lines else ""


def _event(line: str) -> Event | None:
    """What a worker says in one line; nothing for a line that no worker writes."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) and isinstance(event.get("event"), str) else None


def _shortened(text: str) -> str:
    """The end of a text, which may be of any length."""
    text = text.strip()
    return text if len(text) <= _TAIL else f"... {text[-_TAIL:]}"
