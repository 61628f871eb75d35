"""The program that runs the mutants: what it is asked wrongly, it says."""

from __future__ import annotations

import subprocess
import sys

from tests.mutants.mutate import SOURCES


def test_an_id_without_an_outcome_is_said_in_one_line() -> None:
    command = [sys.executable, "-m", "tests.mutants.run", "window.py", "--ids", "nope"]
    done = subprocess.run(command, cwd=SOURCES.parents[1], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "--ids nope: expected ids of outcomes.jsonl\n"
