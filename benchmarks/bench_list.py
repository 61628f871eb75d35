"""``polyattn list`` answers within 0.4 s: a new process, from start to last line."""

import os
import statistics
import subprocess
import sys
from pathlib import Path

from pytest_benchmark.fixture import BenchmarkFixture

LIMIT_S = 0.4


def test_list_answers_at_once(benchmark: BenchmarkFixture) -> None:
    program = str(Path(sys.executable).with_name("polyattn"))
    used: list[float] = []

    def ask() -> None:
        before = os.times()
        subprocess.run([program, "list"], check=True, capture_output=True)
        after = os.times()
        user = after.children_user - before.children_user
        used.append(user + after.children_system - before.children_system)

    benchmark.pedantic(ask, rounds=10, warmup_rounds=2)
    # On a loaded machine only processor time repeats; on a quiet one the two are alike.
    seconds = statistics.median(used)
    benchmark.extra_info.update({"processor_s": seconds, "limit_s": LIMIT_S})
    assert seconds <= LIMIT_S
