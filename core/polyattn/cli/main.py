"""The program ``polyattn``: turns errors into one line and an exit code. No torch, no pydantic.

``polyattn list`` has to answer at once, and typer imports pydantic for the first option that it
reads. So the plain forms of ``list`` are answered here, and everything else goes through typer.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Sequence
from typing import TextIO

from polyattn.cli.interruption import interruptible
from polyattn.cli.printable import printable
from polyattn.errors import PolyattnError
from polyattn.registry import NO_PLUGINS

FAILED = 2
UNFINISHED = 3
INTERRUPTED = 130


def run() -> None:
    """Run the command line: exits 2 with one line on an error, 130 when interrupted."""
    _open_what_is_closed()
    with interruptible():
        _run()


def _run() -> None:
    try:
        _dispatch(sys.argv[1:])
        # A reader that went away (`polyattn list | head`) shows here, not at exit.
        sys.stdout.flush()
    except PolyattnError as error:
        print(f"error: {printable(str(error), sys.stderr)}", file=sys.stderr)
        sys.exit(FAILED)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        forgo(sys.stdout)
        sys.exit(1)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        forgo(sys.stdout)
        place = f" to {error.filename}" if error.filename else ""
        print(f"error: cannot write{place}: {error.strerror}", file=sys.stderr)
        sys.exit(FAILED)


def forgo(stream: TextIO) -> None:
    """Drop what a stream still holds and what is written to it from now on: nobody can read it."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _open_what_is_closed() -> None:
    """A shell may close the streams (`>&-`): Python then has None in their place."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def _dispatch(arguments: Sequence[str]) -> None:
    rest = list(arguments)
    if rest[:1] == ["--no-plugins"]:
        rest.pop(0)
    if rest in (["list"], ["list", "--json"]):
        from polyattn.cli.list import list_names

        if len(rest) < len(arguments):
            block_plugins()
        list_names(as_json="--json" in rest)
        return
    from polyattn.cli.app import app

    app()


def block_plugins() -> None:
    """Run no hook of other packages, here and in worker processes."""
    os.environ[NO_PLUGINS] = "1"


if __name__ == "__main__":
    run()
