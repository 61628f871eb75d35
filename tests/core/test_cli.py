"""The command line, run as a user runs it."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from polyattn import Capabilities, SequenceAttention
from polyattn.cli import main
from polyattn.registry import Entry, Registry, _scan
from polyattn.spec import VariantSpec

POLYATTN = Path(sys.executable).with_name("polyattn")


@dataclass(frozen=True)
class Outcome:
    returncode: int
    stdout: str
    stderr: str


Run = Callable[..., Outcome]


class Nothing:
    pass


class Silent(SequenceAttention):
    pass


class Boastful(SequenceAttention):
    capabilities = "everything"  # type: ignore[assignment]


class Loose(SequenceAttention):
    capabilities = Capabilities()
    Config = dict  # type: ignore[assignment, misc]


@pytest.fixture
def polyattn(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the program in this process, where torch is imported once."""

    def run(*arguments: str, registry: str = "") -> Outcome:
        monkeypatch.setenv("POLYATTN_REGISTRY", registry)
        monkeypatch.setattr(sys, "argv", ["polyattn", *arguments])
        _scan.cache_clear()
        code: object = 0
        try:
            main.run()
        except SystemExit as stop:
            code = stop.code or 0
        assert isinstance(code, int)
        said = capsys.readouterr()
        return Outcome(code, said.out, said.err)

    return run


def assert_error(outcome: Outcome, *expected: str) -> None:
    assert outcome.returncode == 2
    assert "Traceback" not in outcome.stderr
    assert outcome.stdout == ""
    for words in expected:
        assert words in outcome.stderr
    assert outcome.stderr.startswith("error: ")
    assert outcome.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", [["list"], ["list", "--json"], ["--no-plugins", "list"]])
def test_list_imports_neither_torch_nor_pydantic(arguments: list[str]) -> None:
    code = (
        "import sys; from polyattn.cli.main import run; run(); "
        "print([name for name in ('torch', 'pydantic', 'numpy') if name in sys.modules])"
    )
    outcome = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120
    )
    assert outcome.returncode == 0, outcome.stderr
    assert "local_window" in outcome.stdout
    assert outcome.stdout.splitlines()[-1] == "[]"


def test_list_shows_every_name_on_a_line_of_its_own(polyattn: Run) -> None:
    lines = polyattn("list").stdout.splitlines()
    assert lines[0].split() == ["name", "kind", "what", "it", "is", "from"]
    kinds = {line.split()[0]: line.split()[1] for line in lines[1:]}
    assert kinds["softmax"] == "operation"
    assert kinds["local_window"] == "sequence"
    assert kinds["se"] == "feature"
    assert kinds["mistral_window"] == "preset"
    assert all(line == line.rstrip() for line in lines)


def test_list_as_data_is_the_same_list(polyattn: Run) -> None:
    data = json.loads(polyattn("list", "--json").stdout)
    assert data["failed"] == []
    lines = polyattn("list").stdout.splitlines()[1:]
    assert [row["name"] for row in data["names"]] == [line.split()[0] for line in lines]
    (softmax,) = [row for row in data["names"] if row["name"] == "softmax"]
    assert softmax["plugin"] == "polyattn:builtin"
    assert softmax["unavailable"] is None


def test_a_user_file_shows_in_the_list_unless_it_is_wrong(polyattn: Run, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("presets: {tiny: {variant: local_window, options: {left: 3}}}")
    listing = polyattn("list", registry=str(path))
    assert "local_window with left 3" in listing.stdout
    path.write_text("presets: {tiny: {varant: local_window}}")
    outcome = polyattn("list", registry=str(path))
    assert_error(outcome, str(path), "presets.tiny.varant", "did you mean 'variant'")


def test_show_tells_options_ranges_and_claims(polyattn: Run) -> None:
    outcome = polyattn("show", "local_window")
    assert outcome.returncode == 0, outcome.stderr
    rows = {line.split("  ")[0]: line for line in outcome.stdout.splitlines() if line}
    assert "https://arxiv.org/abs/2004.05150" in rows["paper"]
    assert "polyattn_plugins.window:LocalWindow" in rows["class"]
    assert "polyattn (polyattn:builtin)" in rows["from"]
    assert ">= 0" in rows["left"]
    assert ">= 0" in rows["right"]
    assert "float32" in rows["on cpu"]
    assert rows["state"].split() == ["state", "sliding"]
    assert "When not to use it" in outcome.stdout


def test_show_of_an_operation_lists_its_members_in_order(polyattn: Run) -> None:
    lines = polyattn("show", "softmax").stdout.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("asked in this order"))
    members = [line.split()[0] for line in lines[start + 1 : start + 6]]
    assert members == ["windowed", "packed", "flash", "sdpa", "dense"]


def test_show_of_a_preset_shows_its_variant_too(polyattn: Run) -> None:
    text = polyattn("show", "mistral_window").stdout
    assert "local_window with left 4095, right 0" in text
    assert "polyattn_plugins.window:LocalWindow" in text


def test_show_of_a_feature_map(polyattn: Run) -> None:
    text = polyattn("show", "se").stdout
    assert "spatial dims" in text
    assert "ratio" in text


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("Nothing", "stranger: .*:Nothing is declared as sequence, expected a subclass of"),
        ("Silent", "stranger: .*:Silent declares no capabilities"),
        ("Boastful", "stranger: .*:Boastful.* expected polyattn.Capabilities, got 'everything'"),
        ("Loose", "stranger: its Config is <class 'dict'>, expected a polyattn.Options"),
    ],
)
def test_show_of_a_strangers_faulty_class_is_one_line(
    polyattn: Run, monkeypatch: pytest.MonkeyPatch, target: str, expected: str
) -> None:
    spec = VariantSpec(name="odd", target=f"{__name__}:{target}")
    entry = Entry(spec=spec, distribution="acme", label="acme:stranger", reason="")
    monkeypatch.setattr("polyattn.cli.show.discover", lambda: Registry(entries=(entry,)))
    outcome = polyattn("show", "odd")
    assert_error(outcome)
    assert re.search(expected, outcome.stderr)


def answers(polyattn: Run, *arguments: str) -> dict[str, dict[str, object]]:
    outcome = polyattn("explain", *arguments, "--json")
    assert outcome.returncode == 0, outcome.stderr
    return {row["name"]: row for row in json.loads(outcome.stdout)["answers"]}


def test_explain_an_operation_gives_the_choice_and_the_reasons(polyattn: Run) -> None:
    call = ["--length", "4096", "--dtype", "float32", "--causal", "--window", "255,0"]
    found = answers(polyattn, "softmax", *call)
    assert found["softmax"]["chosen"] == "windowed"
    assert found["windowed"]["answer"] == "chosen"
    text = polyattn("explain", "softmax", *call).stdout
    assert "chooses windowed" in text
    assert "window 255, 0" in text


def test_explain_names_who_was_passed_over_and_why(polyattn: Run) -> None:
    found = answers(polyattn, "softmax", "--length", "64", "--causal")
    assert found["softmax"]["chosen"] != "windowed"
    assert found["windowed"]["answer"] == "refuses"
    assert "window" in str(found["windowed"]["reasons"])


def test_explain_without_a_name_asks_every_sequence_variant(polyattn: Run) -> None:
    found = answers(polyattn, "--length", "64", "--causal")
    assert {"dense", "local_window", "linear", "gated_linear", "linformer"} <= set(found)
    assert "se" not in found
    assert found["linformer"]["answer"] == "refuses"
    assert found["linear"]["answer"] == "answers"


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        ("gated_linear --length 8", "refuses"),
        ("gated_linear --length 8 --causal", "answers"),
        ("dense --bias --alibi --padding --segments --dense", "answers"),
        ("linear --bias", "refuses"),
        ("linformer --length 8", "answers"),
        ("linformer --length 8 --decode", "refuses"),
        ("dense --causal --cross", "refuses"),
        ("dense --device tpu", "refuses"),
        ("dense --heads 8 --kv-heads 2 --head-dim 16 --value-dim 32", "answers"),
        ("flash --head-dim 16 --value-dim 32", "refuses"),
        ("flash --dropout 0.1", "refuses"),
        ("local_window --option left=7 --option right=0 --length 99", "answers"),
    ],
)
def test_explain_follows_the_flags(polyattn: Run, call: str, answer: str) -> None:
    name, *flags = call.split()
    assert answers(polyattn, name, *flags)[name]["answer"] == answer


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["show", "local_windw"], ["unknown name 'local_windw', did you mean 'local_window'"]),
        (["explain", "softmx"], ["unknown name 'softmx', did you mean 'softmax'"]),
        (["explain", "se"], ["'se' attends over feature maps", "polyattn show se"]),
        (["explain", "softmax", "--window", "5"], ["--window '5': expected LEFT,RIGHT"]),
        (["explain", "softmax", "--window", "-5,0"], ["--window '-5,0': expected LEFT,RIGHT"]),
        (["explain", "softmax", "--dtype", "floaty"], ["--dtype 'floaty': expected one of"]),
        (["explain", "softmax", "--heads", "8", "--kv-heads", "3"], ["kv_heads = 3", "divisor"]),
        (["explain", "softmax", "--option", "left"], ["--option 'left': expected KEY=VALUE"]),
        (["explain", "softmax", "--option", "scal=1"], ["scal", "did you mean 'scale'"]),
        (["explain", "--option", "left=3"], ["--option left", "with the name of a variant"]),
        (["explain", "local_window", "--option", "call=1"], ["local_window.call: unknown key"]),
        (["explain", "local_window", "--option", "name=1"], ["local_window.name: unknown key"]),
        (["explain", "dense", "--option", "registry=1"], ["dense.registry: unknown key"]),
        (
            ["explain", "local_window", "--option", "left=3", "--option", "left=4"],
            ["--option left: given twice"],
        ),
    ],
)
def test_a_users_mistake_is_one_line(
    polyattn: Run, arguments: list[str], expected: list[str]
) -> None:
    assert_error(polyattn(*arguments), *expected)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["lst"], "no command 'lst', did you mean 'list'"),
        (["list", "--jsn"], "--jsn"),
        (["show"], "name"),
        (["explain", "softmax", "--length", "many"], "--length"),
        (["explain", "softmax", "--length", "-1"], "--length"),
    ],
)
def test_a_wrong_use_exits_2_without_a_traceback(
    polyattn: Run, arguments: list[str], expected: str
) -> None:
    outcome = polyattn(*arguments)
    assert outcome.returncode == 2
    assert expected in outcome.stderr
    assert "Traceback" not in outcome.stderr


def test_help_offers_every_command(polyattn: Run) -> None:
    text = polyattn("--help").stdout
    for command in ("list", "show", "explain", "check", "compare", "new", "--no-plugins"):
        assert command in text


def test_an_interrupt_exits_130_without_a_traceback() -> None:
    code = (
        "import time, sys, polyattn.registry as r; "
        "r._scan = lambda *a: (print('ready', flush=True), time.sleep(60)); "
        "from polyattn.cli.main import run; sys.argv = ['polyattn', 'list']; run()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in errors


@pytest.mark.parametrize("arguments", [["list"], ["list", "--json"]])
def test_a_reader_that_goes_away_causes_no_traceback(arguments: list[str]) -> None:
    process = subprocess.Popen(
        [str(POLYATTN), *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    errors = process.stderr.read()
    process.wait(timeout=60)
    assert "Traceback" not in errors


def test_an_empty_sequence_is_named_in_the_call(polyattn: Run) -> None:
    assert "queries 0; keys 0;" in polyattn("explain", "softmax", "--length", "0").stdout
    assert "keys" not in polyattn("explain", "softmax").stdout.splitlines()[0].replace("kv", "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([POLYATTN, "list"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr == "error: cannot write: No space left on device\n"


@pytest.mark.parametrize("arguments", ["list", "list --json", "explain softmax"])
def test_a_closed_stdout_is_no_error(arguments: str) -> None:
    command = f"{POLYATTN} {arguments} >&-"
    done = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (0, "")
