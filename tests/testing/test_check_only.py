"""``polyattn check --only``: one check run again, alone, by the line that a failure ends with."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.testing.test_cli_check import polyattn

from polyattn.cli.check_question import Question
from polyattn.errors import ConfigError
from polyattn.testing.planned import not_claimed, planned
from polyattn.testing.process.jobs import Plan
from polyattn.testing.process.only import LEFT_OUT, meant
from polyattn.testing.results import Status

HERE = Path(__file__).parent
PART = "core/alibi"
IDS = ["check_a", "check_a_b[1]", "check_a_b[2;x]", "check_c[a_b]"]
Check = Callable[..., tuple[int, str, str]]


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Check:
    """``polyattn check`` among the planted things: its exit code, and what it printed."""
    monkeypatch.chdir(HERE)

    def run(*arguments: str) -> tuple[int, str, str]:
        code = polyattn(monkeypatch, "check", *arguments)
        told = capsys.readouterr()
        return code, told.out, told.err

    return run


def judged(out: str) -> list[dict[str, Any]]:
    return [row for row in json.loads(out)[0]["results"] if row["status"] != "not run"]


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("check_a_b[1]", {"check_a_b[1]"}),
        ("check_a", {"check_a"}),
        ("check_a_b", {"check_a_b[1]", "check_a_b[2;x]"}),
        ("a_b", {"check_a_b[1]", "check_a_b[2;x]", "check_c[a_b]"}),
        ("x]", {"check_a_b[2;x]"}),
    ],
)
def test_a_text_is_an_id_or_a_name_or_a_part(text: str, ids: set[str]) -> None:
    assert meant([text], IDS) == ids
    assert meant([text, "check_c[a_b]"], IDS) == ids | {"check_c[a_b]"}


def test_a_text_that_means_none_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"--only check_d\[1\]: no such check; did you mean"):
        meant(["check_a", "check_d[1]"], IDS)
    with pytest.raises(ConfigError, match=r"ids look like 'check_a', and --json lists them all"):
        meant(["zzz"], IDS)
    with pytest.raises(ConfigError, match="no such check"):
        meant(["check_a"], [])


def test_what_is_left_out_is_not_run_whatever_is_claimed() -> None:
    def check_a() -> None: ...

    def check_b() -> None: ...

    checks = [planned(check_a), not_claimed(check_b, "why")]
    plan = Plan(checks, (), lambda *_: "", lambda _: "all")
    assert plan.of(()).verdict([]) == plan.of(("check_a", "check_b")).verdict([]) == "all"
    alone = plan.of(("check_a",))
    assert alone.verdict([]) == "1 of 2 checks were run, as --only asks"
    assert [x.withheld for x in alone.checks] == [None, Status.NOT_RUN]
    assert alone.checks[1].reason == LEFT_OUT
    with pytest.raises(ConfigError, match="no such check"):
        plan.of(("check_c",))


@pytest.mark.parametrize(
    "arguments",
    [
        ("things_faults.py:causal_by_ten_thousand", "--as", "sdpa"),
        ("things_modules.py:Attention", "--as", "module", "--causal"),
        ("things_models.py:AlignedAtTheFirstKey", "--as", "lm", "--vocab", "9"),
    ],
)
def test_the_line_of_a_failure_runs_that_check_alone_and_finds_the_same(
    check: Check, arguments: tuple[str, ...]
) -> None:
    code, out, _ = check(*arguments)
    assert code == 1
    line = re.findall(r"^  run it again: polyattn check (.+)$", out, re.MULTILINE)[-1]
    explained = out[out.rindex("\nFAILED ") : out.rindex("  run it again: ")]
    words = shlex.split(line)
    assert words[: len(arguments)] == list(arguments)
    code, again, _ = check(*words)
    assert code == 1
    assert explained in again
    assert "1 failed" in again
    assert "passed" not in again
    (row,) = judged(check(*words, "--json")[1])
    assert row["id"] == words[-1]
    assert not json.loads(check(*words, "--json")[1])[0]["good"]


def test_what_is_not_asked_for_is_not_run(check: Check) -> None:
    code, out, _ = check(
        PART, "--only", "slopes[heads1]", "--only", "check_alibi_is_relative", "--json"
    )
    assert code == 0
    rows = json.loads(out)[0]["results"]
    ran = {row["id"] for row in rows if row["status"] == "passed"}
    assert "check_alibi_slopes[heads1]" in ran
    assert {id.partition("[")[0] for id in ran} == {"check_alibi_slopes", "check_alibi_is_relative"}
    assert {row["reason"] for row in rows if row["id"] not in ran} == {"--only leaves it out"}
    _, out, _ = check(PART, "--only", "check_alibi_slopes[heads1]")
    assert re.search(r": 1 of \d+ checks were run, as --only asks$", out, re.MULTILINE)


def test_a_worker_that_is_started_again_leaves_the_same_out(check: Check, tmp_path: Path) -> None:
    path = tmp_path / "f.py"
    path.write_text(
        "import os\n"
        "from torch.nn.functional import scaled_dot_product_attention as sdpa\n"
        "def ends(q, k, v):\n"
        "    os._exit(7) if q.shape[2] == 1 else None\n"
        "    return sdpa(q, k, v)\n"
    )
    asked = ("--only", "check_degenerate_sizes", "--only", "check_matches_reference", "--json")
    code, out, _ = check(f"{path}:ends", "--as", "sdpa", *asked)
    assert code == 1
    assert {row["id"].partition("[")[0] for row in judged(out)} == {
        "check_degenerate_sizes",
        "check_matches_reference",
    }
    assert any("exit code 7" in row["reason"] for row in judged(out))


def test_what_takes_seconds_is_run_when_it_is_asked_for(check: Check) -> None:
    code, out, _ = check("se", "--only", "check_fm_gradcheck", "--json")
    assert code == 0
    assert judged(out)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((PART, "--only", "check_alibi_slope_"), "did you mean"),
        ((PART, "--only", ""), "--only: expected the id of a check or a part of it"),
        (("--all", "--only", "check_a"), "check --all: --only: expected what is registered"),
    ],
)
def test_a_wrong_question_is_one_line(check: Check, arguments: tuple[str, ...], words: str) -> None:
    code, _, error = check(*arguments)
    assert code == 2
    assert words in error


def test_the_line_says_all_that_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Question(
        target="a b.py:f",
        every=False,
        door="sdpa",
        wishes={"mask_arg": "m", "true_means": None, "causal": True},
        only=(),
        extended=False,
        device=None,
        expected=Path("known.yaml"),
    )
    monkeypatch.setattr("sys.argv", ["/somewhere/polyattn/__main__.py"])
    monkeypatch.setenv("POLYATTN_NO_PLUGINS", "1")
    assert asked.again("a b.py:f", "cuda", "check_a[x]") == (
        "python -m polyattn --no-plugins check 'a b.py:f' --as sdpa --mask-arg m --causal "
        "--device cuda --expected known.yaml --only 'check_a[x]'"
    )
