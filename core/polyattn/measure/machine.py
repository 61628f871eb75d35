"""What a run has to say about where it ran."""

from __future__ import annotations

import contextlib
import os
import platform
from importlib import metadata
from pathlib import Path

from polyattn.measure.results import Machine
from polyattn.measure.worker import allocator_settings


def describe_machine(threads: int) -> Machine:
    """The machine, the versions and the settings of this very process."""
    import torch

    return Machine(
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else _cores(),
        device="cpu",
        dtype="float32",
        python=platform.python_version(),
        torch=torch.__version__,
        polyattn=_version(),
        allocator=allocator_settings(),
        threads=threads,
    )


def available_bytes() -> int | None:
    """Memory that a new process may have, by the system and by a container's limit; None where
    neither says."""
    known = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        line = next((line for line in lines if line.startswith("MemAvailable:")), "")
        known.append(int(line.split()[1]) * 1024)
    with contextlib.suppress(OSError, ValueError):
        known.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return min(known, default=None)


def _cores() -> int:
    return os.cpu_count() or 1


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def _version() -> str:
    try:
        return metadata.version("polyattn")
    except metadata.PackageNotFoundError:
        return "not installed"
