"""``polyattn compare`` from the outside: what it writes, what it refuses, how it stops."""

import io
import re
import signal
import subprocess
import sys
import time

import pytest
from rich.console import Console
from tests.measure import planted
from typer import Exit

from polyattn.cli import compare as command
from polyattn.cli.progress import follow
from polyattn.errors import ConfigError, PolyattnError, Unavailable
from polyattn.measure import comparison, report
from polyattn.measure.comparison import Progress
from polyattn.measure.results import Comparison


class FakeRun:
    """Made in an instant. ``interrupted``: the user presses Ctrl-C in the middle."""

    interrupted = False
    plans = ()

    def __init__(self, plan, text):
        self.plan, self.text = plan, text
        self.listen = None
        type(self).plans = (*type(self).plans, plan)

    def run(self):
        self.listen(Progress(0.5, "half way"))
        if self.interrupted:
            raise KeyboardInterrupt

    def result(self):
        return planted.comparison(complete=not self.interrupted)


@pytest.fixture
def fake(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(comparison, "Run", FakeRun)
    monkeypatch.setattr(FakeRun, "plans", ())
    return tmp_path


def test_a_run_writes_to_a_new_numbered_folder_each_time(fake, capsys):
    for number in ("0001", "0002"):
        command.compare()
        folder = fake / "polyattn-runs" / number
        assert sorted(path.name for path in folder.iterdir()) == [
            "compare.json",
            "report.html",
            "table.txt",
        ]
        assert Comparison.from_json((folder / "compare.json").read_text()) == planted.comparison()
        assert (folder / "table.txt").read_text() in capsys.readouterr().out


def test_options_reach_the_plan(fake):
    (fake / "book").write_bytes(bytes(range(256)) * 4)
    command.compare(
        text=fake / "book", variants="linear, softmax", lengths="64,16", seed=3, train=False
    )
    (plan,) = FakeRun.plans
    assert plan.variants == ("linear", "softmax")
    assert (plan.lengths, plan.seed, plan.train) == ((16, 64), 3, False)
    assert plan.text.used == 1024


def test_a_named_folder_is_used_and_never_a_second_time(fake):
    command.compare(out=fake / "mine")
    before = (fake / "mine" / "compare.json").read_bytes()
    with pytest.raises(ConfigError, match="exists already and is not overwritten"):
        command.compare(out=fake / "mine")
    assert (fake / "mine" / "compare.json").read_bytes() == before
    assert len(FakeRun.plans) == 1


def test_what_is_wrong_is_said_before_a_folder_is_made(fake):
    for wrong in ({"variants": "sofmax"}, {"lengths": "a,b"}, {"text": fake / "none"}):
        with pytest.raises(PolyattnError):
            command.compare(**wrong)
    assert list(fake.iterdir()) == []


@pytest.mark.parametrize("lengths", ["a", "1.5", "512;2048", "1e3"])
def test_lengths_that_are_no_numbers(fake, lengths):
    with pytest.raises(
        ConfigError, match=f"--lengths {re.escape(lengths)}: expected whole numbers"
    ):
        command.compare(lengths=lengths)


def test_an_interrupted_run_writes_what_there_is_and_exits_130(fake, monkeypatch, capsys):
    monkeypatch.setattr(FakeRun, "interrupted", True)
    with pytest.raises(Exit) as stopped:
        command.compare(out=fake / "cut")
    assert stopped.value.exit_code == 130
    assert not Comparison.from_json((fake / "cut" / "compare.json").read_text()).complete
    assert "interrupted" in (fake / "cut" / "table.txt").read_text()
    assert "interrupted" in (fake / "cut" / "report.html").read_text()


def test_without_matplotlib_table_and_data_are_still_written(fake, monkeypatch, capsys):
    def refuse(*arguments):
        raise Unavailable("matplotlib is not installed; do this")

    monkeypatch.setattr(report, "charts", refuse)
    command.compare(out=fake / "plain")
    assert sorted(p.name for p in (fake / "plain").iterdir()) == ["compare.json", "table.txt"]
    assert "no page with charts: matplotlib is not installed; do this" in capsys.readouterr().out


def test_progress_is_plain_lines_where_there_is_no_terminal(capsys):
    with follow(Console()) as listener:
        listener(Progress(0.25, "a [quarter]"))
        listener(Progress(0.30, "too soon for another line"))
    said = capsys.readouterr().out.splitlines()
    assert said == ["    0 s  25%  a [quarter]"]


def test_progress_is_a_bar_on_a_terminal():
    console = Console(force_terminal=True, width=80, file=open("/dev/null", "w"))  # noqa: SIM115
    with follow(console) as listener:
        listener(Progress(0.25, "a quarter"))


def polyattn(*arguments, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "polyattn.cli.main", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--variants", "sofmax"), "did you mean 'softmax'?"),
        (("--lengths", "0"), "--lengths: 0: expected 1 token or more"),
        (("--out", "."), "--out .: it exists already"),
        (("--text", "none.txt"), "--text none.txt: no such file"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(tmp_path, arguments, said):
    process = polyattn("compare", *arguments, cwd=tmp_path)
    out, error = process.communicate(timeout=60)
    assert process.returncode == 2
    assert said in error
    assert error.count("\n") == 1
    assert error.startswith("error: ")
    assert out == ""
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_in_a_real_run_leaves_a_readable_result(tmp_path):
    process = polyattn("compare", "--lengths", "64,100000", "--out", "cut", cwd=tmp_path)
    # The first length takes moments, the second one minutes.
    for line in process.stderr:
        if "length 100,000" in line:
            break
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=60)
    assert process.returncode == 130, error
    result = Comparison.from_json((tmp_path / "cut" / "compare.json").read_text())
    assert not result.complete
    assert [run.length for run in result.lengths] == [64]
    assert all(m.forward is not None for m in result.lengths[0].measurements)
    assert "interrupted" in out
    assert "Traceback" not in error


class Unreadable(io.StringIO):
    """A stdout whose reader has gone, or whose disk is full."""

    def write(self, text):
        raise BrokenPipeError(32, "Broken pipe")


def test_a_stdout_that_nobody_reads_loses_nothing(fake, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdout", Unreadable())
    command.compare(out=fake / "kept")
    assert (fake / "kept" / "compare.json").exists()
    assert "written to" in capsys.readouterr().err


def test_progress_that_nobody_reads_ends_nothing():
    with follow(Console(file=Unreadable())) as listener:
        listener(Progress(0.25, "a quarter"))


def test_where_nothing_named_could_be_measured_it_says_so_and_exits_1(fake, monkeypatch, capsys):
    found = planted.comparison(failures={"fast": "at length 16: it refuses"})
    monkeypatch.setattr(FakeRun, "result", lambda self: found)
    monkeypatch.setattr(command, "_words", lambda text: tuple(text.split(",")))
    monkeypatch.setattr("polyattn.measure.plan.make_plan", lambda *a, **k: found.plan)
    command.compare(variants="base,fast")
    with pytest.raises(Exit) as stopped:
        command.compare(variants="fast")
    assert stopped.value.exit_code == 1
    assert "none of the variants that were named could be measured: fast: at length" in (
        capsys.readouterr().out
    )
