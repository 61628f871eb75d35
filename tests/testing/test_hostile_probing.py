"""Code that falls while a door tries it is one failed result, never a fault of the suite."""

from __future__ import annotations

import pytest
import torch

from polyattn.cli import main
from polyattn.errors import ConfigError
from polyattn.testing import Result, run_checks
from polyattn.testing.doors.entrances import listed, open_any
from polyattn.testing.process.contained import first_line
from polyattn.testing.results import Mismatch, Status
from polyattn.testing.tools.numerics import compare, need_shape

HOSTILE = """
import torch
import torch.nn.functional as F

def answers(convert):
    return lambda *given, **named: convert(given[0])

class Mute(Exception):
    def __str__(self): raise RuntimeError("no words")

def mute(*given, **named): raise Mute()

class Sealed(torch.nn.Module):
    def parameters(self, *given, **named): raise RuntimeError("no parameters")
    def forward(self, x): return x

class Unsigned:
    def __call__(self, q, k, v): return F.scaled_dot_product_attention(q, k, v)
    @property
    def __signature__(self): raise RuntimeError("no signature")

sealed, unsigned = Sealed(), Unsigned()
boolean = answers(lambda x: x > 0)
sparse = answers(lambda x: x.to_sparse())
meta = answers(lambda x: x.to("meta"))
nested = answers(lambda x: torch.nested.nested_tensor(list(x)))
second = lambda m, q, *given, **named: (torch.nested.nested_tensor(list(q)), None)
"""


@pytest.fixture
def hostile(tmp_path, monkeypatch):
    (tmp_path / "hostile.py").write_text(HOSTILE)
    monkeypatch.chdir(tmp_path)

    def run(door: str, name: str) -> list[Result]:
        opened = open_any(f"hostile.py:{name}", door=door)
        results = run_checks(listed(opened), on_fail="collect")
        assert opened.verdict(results).startswith("not correct")
        return results

    return run


@pytest.mark.parametrize(
    ("door", "name", "words"),
    [
        ("sdpa", "boolean", "the output is of dtype torch.bool, expected a dense floating tensor"),
        ("sdpa", "sparse", "the output is sparse"),
        ("sdpa", "meta", "the output is on the device meta"),
        ("sdpa", "nested", "the output is nested"),
        ("sdpa", "mute", "it raised Mute: its message cannot be read"),
        ("sdpa", "unsigned", "it raised RuntimeError: no signature, while being tried"),
        ("module", "boolean", "the output is of dtype torch.bool"),
        ("module", "sparse", "the output is sparse"),
        ("module", "meta", "the output is on the device meta"),
        ("module", "nested", "the output is nested"),
        ("module", "mute", "it raised Mute: its message cannot be read"),
        ("module", "sealed", "it raised RuntimeError: no parameters, while being tried"),
        ("lm", "nested", "the output is nested"),
        ("lm", "mute", "it raised Mute: its message cannot be read"),
        ("hf", "second", "its output is nested"),
        ("hf", "mute", "it raised Mute: its message cannot be read"),
    ],
)
def test_what_falls_while_it_is_tried_is_one_failure(hostile, door, name, words) -> None:
    (result,) = hostile(door, name)
    assert result.status is Status.FAILED
    assert words in result.reason


def test_a_wrong_target_is_still_a_wrong_question(hostile) -> None:
    with pytest.raises(ConfigError, match="no 'absent' in it"):
        hostile("module", "absent")


def test_the_command_says_one_failure(hostile, monkeypatch, capsys) -> None:
    arguments = ["polyattn", "check", "hostile.py:sealed", "--as", "module"]
    monkeypatch.setattr("sys.argv", arguments)
    with pytest.raises(SystemExit) as ended:
        main.run()
    assert ended.value.code == 1
    assert "no parameters, while being tried" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("got", "words"),
    [
        (torch.ones(2, 3, dtype=torch.bool), "of dtype torch.bool"),
        (torch.ones(2, 3, dtype=torch.long), "of dtype torch.int64"),
        (torch.ones(2, 3).to_sparse(), "sparse"),
        (torch.ones(2, 3, device="meta"), "on the device meta"),
        (torch.nested.nested_tensor([torch.ones(3), torch.ones(3)]), "nested"),
    ],
)
def test_no_dense_floating_tensor_is_a_mismatch(got, words) -> None:
    with pytest.raises(Mismatch, match=words):
        need_shape("the output", got, (2, 3))
    with pytest.raises(Mismatch, match=words):
        compare("the output", got, torch.ones(2, 3), tolerance=1.0)


def test_whole_numbers_are_compared_with_whole_numbers() -> None:
    compare("the count", torch.tensor([2]), torch.tensor([2]), tolerance=0.0)


def test_an_exception_without_words_has_a_first_line() -> None:
    assert first_line(ValueError()) == "ValueError"
    assert first_line(ValueError("one\ntwo")) == "ValueError: one"
