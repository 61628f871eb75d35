"""The settings of the process that attention code is known to change: watched, and put back."""

from __future__ import annotations

import contextlib
import os
import random
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch


def settings() -> dict[str, object]:
    """Every setting of the process that attention code is known to change."""
    return {
        "the default dtype": torch.get_default_dtype(),
        "the number of threads": torch.get_num_threads(),
        "whether gradients are recorded": torch.is_grad_enabled(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "whether others only warn": torch.is_deterministic_algorithms_warn_only_enabled(),
        "the precision of matrix products": torch.get_float32_matmul_precision(),
        "the flash kernel's flag": torch._C._get_flash_sdp_enabled(),
        "the plain kernel's flag": torch._C._get_math_sdp_enabled(),
        "the memory-efficient kernel's flag": torch._C._get_mem_efficient_sdp_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "anomaly detection": torch.is_anomaly_enabled(),
        "the default device": str(torch.get_default_device()),
        "the current directory": os.getcwd(),
    }


@contextlib.contextmanager
def settings_restored() -> Iterator[None]:
    """Put the settings and the random states back as they were, whatever happens inside."""
    before, seeds = settings(), _random_states()
    kernels = torch.backends.cuda
    try:
        with warnings.catch_warnings():
            yield
    finally:
        if settings() != before:
            torch.set_default_dtype(before["the default dtype"])  # type: ignore[arg-type]
            torch.set_num_threads(int(str(before["the number of threads"])))
            torch.set_grad_enabled(bool(before["whether gradients are recorded"]))
            torch.use_deterministic_algorithms(
                bool(before["deterministic algorithms"]),
                warn_only=bool(before["whether others only warn"]),
            )
            torch.set_float32_matmul_precision(str(before["the precision of matrix products"]))
            kernels.enable_flash_sdp(bool(before["the flash kernel's flag"]))
            kernels.enable_math_sdp(bool(before["the plain kernel's flag"]))
            kernels.enable_mem_efficient_sdp(bool(before["the memory-efficient kernel's flag"]))
            torch.set_autocast_enabled("cpu", bool(before["autocast"]))
            torch.autograd.set_detect_anomaly(bool(before["anomaly detection"]))
            torch.set_default_device(str(before["the default device"]))
            os.chdir(str(before["the current directory"]))
        _set_random_states(seeds)


@contextlib.contextmanager
def surroundings_restored() -> Iterator[None]:
    """Put back what else a call has no business to change: where modules are searched for."""
    path, entries = sys.path, list(sys.path)
    try:
        yield
    finally:
        sys.path = path
        path[:] = entries


@contextlib.contextmanager
def changes_watched() -> Iterator[list[str]]:
    """Afterwards: every setting that the block changed, with what it was and what it became.

    The warning filters count where the block imported nothing: many packages set some when they
    are imported, as they may.
    """
    before, path = settings(), list(sys.path)
    filters, modules = list(warnings.filters), len(sys.modules)
    changed: list[str] = []
    yield changed
    after = settings()
    changed += [
        f"{name} from {was} to {after[name]}" for name, was in before.items() if after[name] != was
    ]
    if sys.path != path:
        new = [entry for entry in sys.path if entry not in path]
        changed.append(f"sys.path{f' by {new[0]!r}' if new else ''}")
    if list(warnings.filters) != filters and len(sys.modules) == modules:
        changed.append("the filters of warnings")


def _random_states() -> tuple[Any, ...]:
    numpy = sys.modules.get("numpy")
    used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    cuda = torch.cuda.get_rng_state_all() if used else None
    others = None if numpy is None else numpy.random.get_state()
    return torch.get_rng_state(), random.getstate(), others, cuda


def _set_random_states(states: tuple[Any, ...]) -> None:
    state, python_state, others, cuda = states
    if not torch.equal(torch.get_rng_state(), state):
        torch.set_rng_state(state)
    random.setstate(python_state)
    if others is not None:
        sys.modules["numpy"].random.set_state(others)
    if cuda is not None:
        torch.cuda.set_rng_state_all(cuda)


@contextlib.contextmanager
def kernel_flags_watched() -> Iterator[list[bool]]:
    """What the flag of torch's plain kernel is set to meanwhile, by a context manager as well."""
    setter = "_set_sdp_use_math"
    original = getattr(torch._C, setter)
    touched: list[bool] = []

    def spy(enabled: bool) -> None:
        touched.append(enabled)
        original(enabled)

    setattr(torch._C, setter, spy)
    try:
        yield touched
    finally:
        setattr(torch._C, setter, original)
