"""``python -m polyattn`` is the program ``polyattn``."""

from __future__ import annotations

import subprocess
import sys

import pytest


def module(*arguments: str, flags: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *flags, "-m", "polyattn", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("list",), 0, "local_window"),
        (("chek",), 2, "did you mean 'check'"),
        (("check", "sofmax"), 2, "did you mean 'softmax'"),
        (("check", "--help"), 0, "python -m polyattn check [OPTIONS]"),
    ],
)
def test_it_answers_as_the_program_does(arguments: tuple[str, ...], code: int, words: str) -> None:
    done = module(*arguments)
    assert done.returncode == code, done.stderr
    assert words in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_a_list_imports_no_torch() -> None:
    done = module("list", flags=("-X", "importtime"))
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "polyattn.cli.main" in imported
    assert not {"torch", "pydantic", "numpy"} & imported
