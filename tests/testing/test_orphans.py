"""``polyattn check`` leaves nothing running that the code it checked has started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.testing.test_cli_check import polyattn

from polyattn.cli import orphans
from polyattn.cli.orphans import orphans_ended

pytestmark = pytest.mark.skipif(not orphans._can_adopt(), reason="orphans are given away on Linux")

STARTS = """
import os, subprocess
from torch.nn.functional import scaled_dot_product_attention as sdpa

def started(**how):
    child = subprocess.Popen(["sleep", "600"], **how)
    with open("pids", "a") as file:
        file.write(f"{child.pid}\\n")

started()
started(start_new_session=True)

def works(q, k, v):
    return sdpa(q, k, v)

def ends(q, k, v):
    os._exit(3) if q.shape[2] == 1 else None
    return sdpa(q, k, v)
"""


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:1]


@pytest.mark.parametrize(("thing", "code"), [("works", 0), ("ends", 1)])
def test_children_end_with_the_check(
    thing: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f.py").write_text(STARTS)
    monkeypatch.chdir(tmp_path)
    assert polyattn(monkeypatch, "check", f"f.py:{thing}", "--as", "sdpa") == code
    pids = [int(line) for line in (tmp_path / "pids").read_text().split()]
    assert len(pids) >= 2
    assert not [pid for pid in pids if alive(pid)]


def orphan(seconds: str) -> int:
    """A process of its own session whose parent is gone."""
    source = (
        "import subprocess, sys; "
        "quiet = {'stdout': subprocess.DEVNULL, 'stderr': subprocess.DEVNULL}; "
        "p = subprocess.Popen(['sleep', sys.argv[1]], start_new_session=True, **quiet); "
        "print(p.pid)"
    )
    done = subprocess.run([sys.executable, "-c", source, seconds], capture_output=True, text=True)
    return int(done.stdout)


def test_what_was_there_before_lives_on() -> None:
    child = subprocess.Popen(["sleep", "600"])
    try:
        with orphans_ended():
            left = orphan("600")
            assert alive(left)
        assert not alive(left)
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()


def test_afterwards_orphans_are_given_away_as_before() -> None:
    with orphans_ended():
        pass
    left = orphan("2")
    time.sleep(0.1)
    assert left not in orphans._children()
    assert alive(left)


SPINS = """
import os
from torch.nn.functional import scaled_dot_product_attention as sdpa

def spins(q, k, v):
    if not os.path.exists("pid"):
        with open("pid.new", "w") as file:
            file.write(str(os.getpid()))
        os.rename("pid.new", "pid")
    while True:
        try:
            while True: pass
        except: pass
"""


@pytest.fixture
def spinning(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A check of code that swallows every exception, under way; its worker's number is in pid."""
    (tmp_path / "f.py").write_text(SPINS)
    command = [sys.executable, "-m", "polyattn.cli.main", "check", "f.py:spins", "--as", "sdpa"]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, cwd=tmp_path, text=True, **streams)  # type: ignore[call-overload]
    until = time.monotonic() + 60
    while not (tmp_path / "pid").exists() and time.monotonic() < until:
        time.sleep(0.05)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        with contextlib.suppress(OSError):
            os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_worker_ends_with_the_program_however_that_is_ended(
    spinning: subprocess.Popen[str], tmp_path: Path, number: signal.Signals
) -> None:
    worker = int((tmp_path / "pid").read_text())
    assert alive(worker)
    spinning.send_signal(number)
    out, error = spinning.communicate(timeout=30)
    until = time.monotonic() + 5
    while alive(worker) and time.monotonic() < until:
        time.sleep(0.01)
    assert not alive(worker)
    if number != signal.SIGKILL:
        assert spinning.returncode == 130
        assert out.endswith("f.py:spins: interrupted\n")
        assert error == ""


def test_interrupting_over_and_over_does_not_break_off_the_clean_up(
    spinning: subprocess.Popen[str], tmp_path: Path
) -> None:
    while spinning.poll() is None:
        spinning.send_signal(signal.SIGINT)
    assert not alive(int((tmp_path / "pid").read_text()))
    out, error = spinning.communicate()
    assert (spinning.returncode, error) == (130, "")
    assert out.endswith("f.py:spins: interrupted\n")


def test_an_interruption_while_all_is_ended_waits_for_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    children = orphans._children

    def interrupted() -> set[int]:
        if asked:
            os.kill(os.getpid(), signal.SIGINT)
        asked.append(True)
        return children()

    asked: list[bool] = []
    monkeypatch.setattr(orphans, "_children", interrupted)
    with orphans_ended():
        left = subprocess.Popen(["sleep", "600"])
    assert not alive(left.pid)
    assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
