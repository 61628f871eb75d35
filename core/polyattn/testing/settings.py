"""The settings of the process that attention code is known to change: watched, and put back."""

from __future__ import annotations

import contextlib
import random
import warnings
from collections.abc import Iterator

import torch


def settings() -> dict[str, object]:
    """Every setting of the process that attention code is known to change."""
    return {
        "the default dtype": torch.get_default_dtype(),
        "the number of threads": torch.get_num_threads(),
        "whether gradients are recorded": torch.is_grad_enabled(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "the precision of matrix products": torch.get_float32_matmul_precision(),
        "the flash kernel's flag": torch._C._get_flash_sdp_enabled(),
        "the plain kernel's flag": torch._C._get_math_sdp_enabled(),
        "the memory-efficient kernel's flag": torch._C._get_mem_efficient_sdp_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "anomaly detection": torch.is_anomaly_enabled(),
        "the default device": str(torch.get_default_device()),
    }


@contextlib.contextmanager
def settings_restored() -> Iterator[None]:
    """Put the settings and the random state back as they were, whatever happens inside."""
    before, state, python_state = settings(), torch.get_rng_state(), random.getstate()
    kernels = torch.backends.cuda
    try:
        with warnings.catch_warnings():
            yield
    finally:
        if settings() != before:
            torch.set_default_dtype(before["the default dtype"])  # type: ignore[arg-type]
            torch.set_num_threads(int(str(before["the number of threads"])))
            torch.set_grad_enabled(bool(before["whether gradients are recorded"]))
            torch.use_deterministic_algorithms(bool(before["deterministic algorithms"]))
            torch.set_float32_matmul_precision(str(before["the precision of matrix products"]))
            kernels.enable_flash_sdp(bool(before["the flash kernel's flag"]))
            kernels.enable_math_sdp(bool(before["the plain kernel's flag"]))
            kernels.enable_mem_efficient_sdp(bool(before["the memory-efficient kernel's flag"]))
            torch.set_autocast_enabled("cpu", bool(before["autocast"]))
            torch.autograd.set_detect_anomaly(bool(before["anomaly detection"]))
            torch.set_default_device(str(before["the default device"]))
        if not torch.equal(torch.get_rng_state(), state):
            torch.set_rng_state(state)
        random.setstate(python_state)


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
