"""``polyattn check`` leaves nothing running that the code it checked has started."""

from __future__ import annotations

import os
import subprocess
import sys
import time
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
