"""Throw-away environments that borrow this one's packages, so that no test downloads anything."""

import json
import os
import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Environment:
    """A virtual environment. What is installed here is installed nowhere else."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def pip_install(self, *what: str | Path) -> None:
        """Install without dependencies, without an index and without building in isolation."""
        command = [sys.executable, "-m", "pip", "--python", str(self.python), "install", "-q"]
        command += ["--no-deps", "--no-index", "--no-build-isolation", "--ignore-installed"]
        outcome = self._run([*command, *map(str, what)])
        assert outcome.returncode == 0, outcome.stderr

    def pip_uninstall(self, name: str) -> None:
        """Take a distribution out of this environment again."""
        command = [sys.executable, "-m", "pip", "--python", str(self.python), "uninstall", "-q"]
        outcome = self._run([*command, "--yes", name])
        assert outcome.returncode == 0, outcome.stderr

    def run(self, *arguments: str | Path, **variables: str) -> "subprocess.CompletedProcess[str]":
        """Run a program of this environment, from a folder with nothing to import by accident."""
        program, *rest = map(str, arguments)
        return self._run([str(self.folder / "bin" / program), *rest], **variables)

    def script(self, code: str, **variables: str) -> Any:
        """What a script prints as JSON."""
        outcome = self.run("python", "-c", code, **variables)
        assert outcome.returncode == 0, outcome.stderr
        return json.loads(outcome.stdout)

    def _run(self, command: list[str], **variables: str) -> "subprocess.CompletedProcess[str]":
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "POLYATTN"))}
        kept |= {"POLYATTN_REGISTRY": "", "OMP_NUM_THREADS": "1", **variables}
        empty = self.folder / "empty"
        empty.mkdir(exist_ok=True)
        return subprocess.run(
            command, cwd=empty, env=kept, capture_output=True, text=True, timeout=300
        )


def borrowing_environment(folder: Path) -> Environment:
    """A new environment without packages of its own, that sees the packages of this one.

    A line in a .pth file adds the folder to the path without reading the .pth files in there: an
    editable polyattn of this environment is not seen.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = folder / "lib" / version / "site-packages"
    (packages / "borrowed.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return Environment(folder)


def build(source: Path, kind: str, target: Path) -> Path:
    """Build a distribution (kind: wheel or sdist) of a source tree; returns its file."""
    command = [sys.executable, "-m", "build", "--no-isolation", f"--{kind}", "-o", str(target)]
    outcome = subprocess.run(
        [*command, str(source)], capture_output=True, text=True, cwd=target, timeout=300
    )
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    (made,) = target.iterdir()
    return made
