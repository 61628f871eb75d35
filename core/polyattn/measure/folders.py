"""Where a run writes: a folder that did not exist before, so that nothing is overwritten."""

from __future__ import annotations

from pathlib import Path

from polyattn.errors import ConfigError

RUNS = "polyattn-runs"


def new_folder(out: Path | None, beside: Path | None = None) -> Path:
    """Make the folder of a run: ``out``, or the next number in ``polyattn-runs`` of ``beside``
    (default: the current folder).

    Raises: ConfigError, one line, if ``out`` exists or a folder cannot be made.
    """
    runs = (beside or Path()) / RUNS
    if out is not None and (out.exists() or out.is_symlink()):
        raise ConfigError(
            f"--out {out}: it exists already and is not overwritten; name a new folder, or leave "
            f"--out away for a numbered one in {RUNS}"
        )
    try:
        if out is None:
            return _next_number(runs)
        out.mkdir(parents=True)
        return out
    except OSError as error:
        raise ConfigError(
            f"cannot make the folder {out or runs} ({error.strerror}); name another with --out"
        ) from None


def _next_number(runs: Path) -> Path:
    runs.mkdir(exist_ok=True)
    number = max((int(p.name) for p in runs.iterdir() if p.name.isdecimal()), default=0)
    while True:
        number += 1
        folder = runs / f"{number:04d}"
        try:
            folder.mkdir()
        except FileExistsError:
            # Another run was quicker, or a file has that name.
            continue
        return folder
