"""Worker processes: their environment, their protocol, and how they die."""

import io
import json
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from polyattn.measure import jobs, worker
from polyattn.measure.worker import Worker, WorkerFailed

ECHO = """
import json, os, subprocess, sys
for line in sys.stdin:
    request = json.loads(line)
    print(json.dumps({"event": "heard", **request}), flush=True)
    if request["job"] == "die":
        print("last words", file=sys.stderr)
        sys.exit(3)
    if request["job"] == "leave a child":
        child = subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL)
        print(json.dumps({"event": "child", "pid": child.pid}), flush=True)
        os._exit(3)
    if request["job"] == "write":
        os.write(1, request["what"].encode("latin-1"))
    if request["job"] == "flood":
        for _ in range(30):
            os.write(2, b"x" * 2**20)
        os.write(2, b" the end")
        os._exit(1)
    if request["job"] == "kill":
        os.kill(os.getpid(), 9)
    if request["job"] == "fail":
        print(json.dumps({"event": "failed", "reason": "planted"}), flush=True)
    else:
        print(json.dumps({"event": "done"}), flush=True)
"""
ENVIRONMENT = """
import json, os
print(json.dumps({"event": "environment", **os.environ}), flush=True)
input()
"""


def echo():
    return Worker(1, (sys.executable, "-c", ECHO))


def test_a_request_is_answered_by_events():
    with echo() as process:
        for number in (1, 2):
            events = list(process.events("say", number=number))
            assert events == [{"event": "heard", "job": "say", "number": number}]


def test_a_job_that_fails_leaves_the_worker_alive():
    with echo() as process:
        with pytest.raises(WorkerFailed, match="planted"):
            list(process.events("fail"))
        assert process.alive
        assert len(list(process.events("say"))) == 1


@pytest.mark.parametrize(
    ("job", "said"),
    [
        ("die", "its process ended with exit code 3: last words"),
        (
            "kill",
            r"its process was ended by SIGKILL \(most likely out of memory, or of its CPU time\)",
        ),
    ],
)
def test_a_worker_that_dies_says_how(job, said):
    with echo() as process:
        with pytest.raises(WorkerFailed, match=said):
            list(process.events(job))
        assert not process.alive
        with pytest.raises(WorkerFailed, match=said):
            list(process.events("say"))


@pytest.mark.parametrize(
    "what",
    ["hello\n", "[1]\n", "{}\n", '{"event": 1}\n', "\xff\xfe\n", "hello", "[" * 10**5 + "\n"],
)
def test_what_is_not_an_event_ends_the_worker_and_is_told(what):
    with echo() as process:
        with pytest.raises(WorkerFailed, match="its code wrote into the suite's stream") as error:
            list(process.events("write", what=what))
        assert len(str(error.value)) < 500
        assert not process.alive


def test_an_answer_without_an_end_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(worker, "_LONGEST", 1000)
    source = "import os, time; os.write(1, b'x' * 5000); time.sleep(600)"
    with (
        Worker(1, (sys.executable, "-c", source)) as process,
        pytest.raises(WorkerFailed, match="its code wrote into the suite's stream"),
    ):
        assert process.next_event(timeout=10) is not None


def test_of_a_flood_without_a_line_break_the_end_is_read_and_told(monkeypatch):
    with echo() as process:
        process.start("flood")
        read = []
        usual = process._errors.read
        counting = SimpleNamespace(
            read=lambda *most: read.append(usual(*most)) or read[-1],
            seek=process._errors.seek,
            close=process._errors.close,
        )
        monkeypatch.setattr(process, "_errors", counting)
        with pytest.raises(WorkerFailed, match=r"exit code 1: \.\.\. x+ the end$") as error:
            list(iter(process.next_event, "never"))
    assert len(str(error.value)) < 500
    assert sum(map(len, read)) < 2**16


def test_waiting_for_an_event_ends_with_the_time():
    with Worker(1, (sys.executable, "-c", "input()")) as process:
        assert process.next_event(timeout=0.05) is None


def test_leaving_ends_the_process_whatever_it_does():
    with Worker(1, (sys.executable, "-c", "import time; time.sleep(600)")) as process:
        assert process.alive
    assert not process.alive


def ended(pid):
    """Whether it is gone, or soon is: a process that is killed takes a moment."""
    for _ in range(200):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        stat = Path(f"/proc/{pid}/stat")
        if stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.01)
    return False


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="there are no groups of processes")
@pytest.mark.parametrize("listens", [True, False])
def test_a_worker_that_dies_by_itself_leaves_nothing_running(listens):
    with echo() as process:
        process.start("leave a child")
        process.next_event()
        child = process.next_event()["pid"]
        if listens:
            with pytest.raises(WorkerFailed, match="exit code 3"):
                process.next_event()
        else:
            while process.alive:
                time.sleep(0.01)
    assert ended(child)


def test_the_allocator_is_told_before_the_process_starts(monkeypatch):
    monkeypatch.setattr(worker.platform, "libc_ver", lambda: ("glibc", "2.36"))
    with Worker(2, (sys.executable, "-c", ENVIRONMENT)) as process:
        environment = process.next_event(timeout=30)
    assert int(environment["MALLOC_MMAP_THRESHOLD_"]) > 2**30
    assert int(environment["MALLOC_TRIM_THRESHOLD_"]) > 2**30
    assert environment["OMP_NUM_THREADS"] == "2"


def test_elsewhere_than_on_glibc_the_settings_say_so(monkeypatch):
    for name in worker.ALLOCATOR:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(worker.platform, "libc_ver", lambda: ("", ""))
    assert "MALLOC_MMAP_THRESHOLD_" not in worker.worker_environment(1)
    assert "not glibc" in worker.allocator_settings()["allocator"]


def answers_to(*lines):
    out = io.StringIO()
    jobs.serve(io.StringIO("".join(json.dumps(line) + "\n" for line in lines)), out)
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_a_job_that_raises_is_answered_in_one_line(tmp_path):
    answers = answers_to(
        {"job": "count", "train": str(tmp_path / "none"), "held_out": "", "orders": [1]},
        {"job": "machine", "threads": 1},
    )
    assert answers[0]["event"] == "failed"
    assert answers[0]["reason"].startswith("FileNotFoundError: ")
    assert [answer["event"] for answer in answers[1:]] == ["result", "done"]


def test_the_real_worker_counts_and_what_is_printed_there_does_no_harm(tmp_path):
    (tmp_path / "train").write_bytes(b"abab" * 50)
    (tmp_path / "held").write_bytes(b"abab")
    code = (
        "import sys; from polyattn.measure import jobs; real = jobs.JOBS['count']\n"
        "def noisy(request):\n    print('noise'); yield from real(request)\n"
        "jobs.JOBS = {'count': noisy}; jobs.main()"
    )
    with Worker(1, (sys.executable, "-c", code)) as process:
        (event,) = process.events(
            "count", train=str(tmp_path / "train"), held_out=str(tmp_path / "held"), orders=[1]
        )
    assert event["result"][0]["order"] == 1
    assert event["result"][0]["bits"] < 4
