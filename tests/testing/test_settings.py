"""What is put back after code that changes the settings of the process."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from polyattn.testing import Status, run_checks
from polyattn.testing.planned import Check
from polyattn.testing.process.settings import (
    changes_watched,
    settings,
    settings_restored,
    surroundings_restored,
)

KEPT: list[object] = []


class DeafFunctions(TorchFunctionMode):
    def __torch_function__(self, *given, **named):  # type: ignore[no-untyped-def]
        raise RuntimeError("deaf")


class DeafOperators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __torch_dispatch__(self, *given, **named):  # type: ignore[no-untyped-def]
        raise RuntimeError("deaf")


OPERATORS: Any = DeafOperators


def enter(mode: object) -> None:
    KEPT.append(mode)
    mode.__enter__()  # type: ignore[attr-defined]


def replace_functions() -> None:
    for name in ("randn", "equal", "allclose"):
        setattr(torch, name, lambda *given, **named: 1 / 0)


def replace_the_clock() -> None:
    time.monotonic = time.perf_counter = lambda: 1 / 0


LEFT: dict[str, Callable[[], object]] = {
    "inference mode from False to True": lambda: enter(torch.inference_mode()),
    "function modes of torch (DeafFunctions)": lambda: enter(DeafFunctions()),
    "dispatch modes of torch (DeafOperators)": lambda: enter(OPERATORS()),
    "torch.allclose, torch.equal, torch.randn": replace_functions,
    "torch.Tensor.add_": lambda: setattr(torch.Tensor, "add_", None),
    "time.perf_counter": replace_the_clock,
    "the recursion limit": lambda: sys.setrecursionlimit(200),
    "whether a timer runs": lambda: signal.setitimer(signal.ITIMER_PROF, 1000),
}
WATCHED: dict[str, Callable[[], object]] = {
    **LEFT,
    "the environment (POLYATTN_PLANTED)": lambda: os.environ.update(POLYATTN_PLANTED="1"),
    "handlers of signals (SIGUSR1)": lambda: signal.signal(signal.SIGUSR1, print),
    "the mask of new files": lambda: os.umask(0o007),
    "whether denormal numbers are zero": lambda: torch.set_flush_denormal(True),
    "oneDNN from True to False": lambda: torch._C._set_mkldnn_enabled(False),
    "whether garbage is collected": gc.disable,
    "torch.nn.functional.relu": lambda: setattr(torch.nn.functional, "relu", torch.sigmoid),
}


def works() -> None:
    """A bit of everything that a check does."""
    x = torch.randn(3, requires_grad=True)
    (gradient,) = torch.autograd.grad((x.clone().add_(1) * 2).sum(), x)
    assert torch.equal(gradient, torch.full((3,), 2.0))
    assert time.monotonic() > 0


@pytest.mark.parametrize("told", LEFT)
def test_the_check_that_leaves_the_process_changed_has_failed_and_no_other(told: str) -> None:
    def meddle() -> None:
        LEFT[told]()

    checks = [Check("check_a", run=works), Check("check_b", run=meddle), Check("check_c", works)]
    results = run_checks(checks, on_fail="collect")
    assert [x.status for x in results] == [Status.PASSED, Status.FAILED, Status.PASSED]
    assert told in results[1].reason
    assert told in str(results[1].failure)
    works()


def test_what_was_left_behind_is_told_before_what_came_of_it() -> None:
    def meddle() -> None:
        replace_functions()
        works()

    result = run_checks([Check("check_a", run=meddle)], on_fail="collect")[0]
    assert result.status is Status.FAILED
    assert "left behind, changed: torch.allclose, torch.equal, torch.randn; after" in result.reason
    assert "ZeroDivisionError" in result.reason


@pytest.mark.parametrize("told", WATCHED)
def test_what_a_call_changes_is_named_and_put_back(told: str) -> None:
    def state() -> list[object]:
        return [
            dict(os.environ),
            signal.getsignal(signal.SIGUSR1),
            gc.isenabled(),
            os.umask(os.umask(0o022)),
            1e-310 / 2 == 0,
        ]

    os.umask(0o022)
    before = state()
    with settings_restored(), surroundings_restored(), changes_watched() as changed:
        WATCHED[told]()
    assert told in ", ".join(changed)
    assert state() == before
    assert torch._C._get_mkldnn_enabled()
    assert torch.nn.functional.relu is not torch.sigmoid
    works()


def test_the_shell_that_torchs_compiler_puts_around_functions_is_its_own_affair() -> None:
    tried = """
import torch
from polyattn.testing.process.settings import changes_watched, surroundings_restored

bare, init = torch.manual_seed, torch.nn.Module.__init__
with surroundings_restored() as left, changes_watched() as changed:
    torch.compile(torch.nn.ReLU(), backend="eager")(torch.ones(1))
print(torch.manual_seed is bare, torch.nn.Module.__init__ is init, left, changed)
"""
    done = subprocess.run([sys.executable, "-c", tried], capture_output=True, text=True, check=True)
    assert done.stdout == "False False [] []\n"


def test_a_block_that_changes_nothing_is_not_blamed() -> None:
    with surroundings_restored() as left, changes_watched() as changed:
        works()
    assert changed == left == []


@pytest.mark.parametrize("by_a_block", [False, True])
def test_a_default_device_under_a_mode_is_put_back(by_a_block: bool) -> None:
    with settings_restored():
        enter(torch.device("meta")) if by_a_block else torch.set_default_device("meta")
        enter(DeafFunctions())
    assert torch.zeros(1).device.type == "cpu"


def test_a_current_directory_that_is_removed_is_put_back_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def meddle() -> None:
        (tmp_path / "gone").mkdir()
        os.chdir(tmp_path / "gone")
        (tmp_path / "gone").rmdir()

    monkeypatch.chdir(tmp_path)
    checks = [Check("check_a", run=meddle), Check("check_b", run=works)]
    results = run_checks(checks, on_fail="collect")
    assert [x.status for x in results] == [Status.FAILED, Status.PASSED]
    assert "the current directory" in results[0].reason
    assert Path.cwd() == tmp_path


def test_settings_are_read_where_there_is_no_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with settings_restored():
        torch.set_default_dtype(torch.float64)
    assert settings()["the default dtype"] is torch.float32
    monkeypatch.undo()


def test_that_nondeterminism_only_warns_is_kept_and_watched() -> None:
    with settings_restored():
        torch.use_deterministic_algorithms(True, warn_only=True)
        with settings_restored(), changes_watched() as changed:
            torch.use_deterministic_algorithms(True)
        assert changed == ["whether others only warn from True to False"]
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()


def test_what_tries_a_function_puts_the_functions_of_torch_back() -> None:
    with settings_restored():
        replace_functions()
        torch.set_flush_denormal(True)
    works()
    assert 1e-310 / 2 > 0
