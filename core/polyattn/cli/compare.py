"""``polyattn compare``: variants side by side on a text: speed, memory, and what they learn."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from polyattn.measure.comparison import Run
    from polyattn.measure.results import Comparison

INTERRUPTED = 130


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

    Writes a table, compare.json and a page with charts. Ctrl-C writes what there is.
    """
    from polyattn.measure.comparison import Run
    from polyattn.measure.folders import new_folder
    from polyattn.measure.plan import make_plan, open_text
    from polyattn.registry import discover

    source = open_text(text)
    plan = make_plan(
        discover(),
        source,
        variants=None if variants is None else _words(variants),
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
    _write(result, folder)
    if not result.complete:
        raise typer.Exit(INTERRUPTED)


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
        console.print("interrupted: writing what there is")


def _write(result: Comparison, folder: Path) -> None:
    from rich.console import Console

    from polyattn.errors import Unavailable
    from polyattn.measure.report import write_page
    from polyattn.measure.table import make_table, table_text

    console = Console()
    if console.is_terminal:
        console.print(make_table(result))
    else:
        print(table_text(result), end="")
    (folder / "compare.json").write_text(result.to_json(), encoding="utf-8")
    (folder / "table.txt").write_text(table_text(result), encoding="utf-8")
    written = "table.txt, compare.json"
    try:
        write_page(result, folder / "report.html")
        written += ", report.html"
    except Unavailable as error:
        print(f"no page with charts: {error}")
    print(f"\nwritten to {folder}: {written}")


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
