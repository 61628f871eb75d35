"""``polyattn compare``: variants side by side on a text: speed, memory, and what they learn."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polyattn.cli.main import INTERRUPTED, forgo
from polyattn.cli.printable import printable

if TYPE_CHECKING:
    from polyattn.measure.comparison import Run
    from polyattn.measure.results import Comparison


def compare(
    text: Annotated[
        Path | None,
        typer.Option(help="File to learn from, any bytes. [default: Python's own documentation]"),
    ] = None,
    variants: Annotated[
        str | None,
        typer.Option(help="Names, separated by commas. [default: what the plugins suggest]"),
    ] = None,
    lengths: Annotated[
        str, typer.Option(help="Numbers of tokens to time, separated by commas.")
    ] = "512,2048,8192",
    full: Annotated[
        bool, typer.Option("--full", help="Train longer and with two seeds, time longer.")
    ] = False,
    train: Annotated[bool, typer.Option(help="Train models on the text and the copy task.")] = True,
    threads: Annotated[int, typer.Option(help="Threads to time with.")] = 1,
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(help="New folder to write to. [default: the next in polyattn-runs]"),
    ] = None,
) -> None:
    """Compare attention variants: proven, timed, weighed, and trained on a text.

    Writes a table, compare.json and a page with charts. Ctrl-C writes what there is. Exits 1
    where none of the variants could be measured.
    """
    from polyattn.measure.comparison import Run
    from polyattn.measure.folders import new_folder
    from polyattn.measure.plan import make_plan, open_text
    from polyattn.registry import discover

    named = None if variants is None else _words(variants)
    source = open_text(text)
    plan = make_plan(
        discover(),
        source,
        variants=named,
        lengths=_numbers(lengths),
        seed=seed,
        threads=threads,
        full=full,
        train=train,
    )
    folder = new_folder(out)
    run = Run(plan, source)
    _perform(run)
    result = run.result()
    named = result.plan.variants if named is None else named
    _tell(result, _write(result, folder), named)
    if not result.complete:
        raise typer.Exit(INTERRUPTED)
    if _nothing_measured(result, named):
        raise typer.Exit(1)


def _perform(run: Run) -> None:
    """Run with progress on the terminal; an interruption leaves what there is in the run."""
    from rich.console import Console

    from polyattn.cli.progress import follow

    console = Console(stderr=True)
    try:
        with follow(console) as listener:
            run.listen = listener
            run.run()
    except KeyboardInterrupt:
        with contextlib.suppress(OSError):
            print("interrupted: writing what there is", file=sys.stderr, flush=True)


def _write(result: Comparison, folder: Path) -> str:
    """Write the files: before anything is printed, since nobody may be there to read it.

    Returns: what there is to say of it.
    """
    from polyattn.errors import Unavailable
    from polyattn.measure.report import write_page
    from polyattn.measure.table import table_text

    said = ""
    (folder / "compare.json").write_text(result.to_json(), encoding="utf-8")
    (folder / "table.txt").write_text(table_text(result), encoding="utf-8")
    written = "table.txt, compare.json"
    try:
        write_page(result, folder / "report.html")
        written += ", report.html"
    except Unavailable as error:
        said = f"no page with charts: {error}\n"
    return f"{said}\nwritten to {folder}: {written}"


def _tell(result: Comparison, said: str, named: Sequence[str]) -> None:
    """Print the table and where it is. A stdout that cannot be written to has lost nothing."""
    from rich.console import Console

    from polyattn.measure.table import make_table, table_text

    console = Console()
    try:
        if console.is_terminal:
            console.print(make_table(result))
        else:
            print(printable(table_text(result)), end="")
        print(said)
        if _nothing_measured(result, named):
            reasons = "; ".join(f"{name}: {result.failures[name]}" for name in named)
            told = f"none of the variants that were named could be measured: {reasons}"
            print(f"\n{printable(told)}")
        sys.stdout.flush()
    except OSError as error:
        forgo(sys.stdout)
        with contextlib.suppress(OSError):
            where = said.strip().splitlines()[-1]
            print(f"{where}; the table could not be printed: {error.strerror}", file=sys.stderr)


def _nothing_measured(result: Comparison, named: Sequence[str]) -> bool:
    return all(name in result.failures for name in named)


def _words(text: str) -> tuple[str, ...]:
    return tuple(word for word in (part.strip() for part in text.split(",")) if word)


def _numbers(text: str) -> tuple[int, ...]:
    from polyattn.errors import ConfigError

    try:
        return tuple(int(word) for word in _words(text))
    except ValueError:
        raise ConfigError(
            f"--lengths {text}: expected whole numbers separated by commas, such as 512,2048"
        ) from None
