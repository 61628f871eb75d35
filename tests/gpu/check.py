"""``make gpu-check``: every registered variant on a GPU, with the torch of that machine.

For a machine without a network: polyattn and the packages that it lacks come as wheels (`make
gpu-check-wheels`), and are installed without their dependencies into a folder that is thrown away.
Writes one JSON file. Exits 0 where everything that is claimed holds, 1 where something fails, 2
where something is missing, such as the GPU: then nothing was checked.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

SECONDS = 240.0
"""For all checks together: with the installation it stays within five minutes."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="The conformance suite on a GPU.")
    parser.add_argument("--wheels", type=Path, required=True, help="folder of the wheels")
    parser.add_argument("--out", type=Path, default=Path("gpu-check.json"))
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--installed", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.installed:
        return check(given.out, given.seconds)
    problem = missing(given.wheels)
    if problem:
        print(f"gpu-check: nothing was checked: {problem}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        wheels = [str(path) for path in sorted(given.wheels.glob("*.whl"))]
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "--no-deps", "--no-index", "--target", folder, *wheels], check=True)
        again = [sys.executable, __file__, "--installed", "--wheels", str(given.wheels)]
        again += ["--out", str(given.out), "--seconds", str(given.seconds)]
        done = subprocess.run(again, env={**os.environ, "PYTHONPATH": folder})
    return done.returncode


def missing(wheels: Path) -> str:
    """What keeps it from running here, in one line; empty where nothing does."""
    if not list(wheels.glob("polyattn-*.whl")):
        return f"no wheel of polyattn in {wheels}; `make gpu-check-wheels` builds it"
    if importlib.util.find_spec("torch") is None:
        return f"{sys.executable} has no torch"
    import torch

    if not torch.cuda.is_available():
        return f"torch {torch.__version__} sees no CUDA device on this machine"
    return ""


def check(out: Path, seconds: float) -> int:
    """Check all names on CUDA and write the file. Gives the exit code."""
    from polyattn.registry import discover

    started = time.monotonic()
    registry = discover()
    names = [*registry.operations, *registry.variants]
    reports = list(reports_of(names, "cuda", seconds))
    result = {
        "machine": machine(),
        "device": "cuda",
        "seconds": round(time.monotonic() - started, 1),
        "good": all(report["good"] for report in reports),
        "reports": reports,
    }
    out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"{out}: {'all that is claimed holds' if result['good'] else 'something fails'}")
    return 0 if result["good"] else 1


def reports_of(names: Sequence[str], device: str, seconds: float) -> Iterator[dict[str, Any]]:
    """The report of each name as data; a share of the time for each, what one leaves for the rest.

    What is not reached is listed as not run.
    """
    from polyattn.cli.check_report import Report
    from polyattn.errors import PolyattnError
    from polyattn.testing.process.worker import Job, Suite

    end = time.monotonic() + seconds
    with Suite() as suite:
        for at, name in enumerate(names):
            share = max(0.0, end - time.monotonic()) / (len(names) - at)
            report = Report(name, device, brief=True)
            try:
                suite.run(Job(target=name, device=device, total=share), report)
            except PolyattnError as error:
                report.unusable(str(error))
            yield report.as_json()


def machine() -> dict[str, str]:
    """What it ran on, by what decides the result."""
    import torch

    return {
        "gpu": torch.cuda.get_device_name(0),
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "python": platform.python_version(),
    }


if __name__ == "__main__":
    sys.exit(main())
