"""Printing for people: a console that does not fold what a pipe reads, and plain tables."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from polyattn.cli.printable import printable

if TYPE_CHECKING:
    from rich.console import Console

_UNFOLDED = 400


def console() -> Console:
    """A console on stdout. Without a terminal it is wide, so that lines can be searched."""
    from rich.console import Console

    return Console() if sys.stdout.isatty() else Console(width=_UNFOLDED)


def show(
    console: Console,
    titles: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    headed: bool = True,
) -> None:
    """Print a table without lines; only its longest column is ever folded.

    Cells are text, never markup or escapes: a plugin's summary cannot style the terminal. A column
    without a word in it is left out.
    """
    from rich.table import Table
    from rich.text import Text

    rows = [tuple(row) for row in rows]
    used = [i for i, title in enumerate(titles) if not headed or any(row[i] for row in rows)]
    longest = max(used, key=lambda i: max(len(row[i]) for row in rows))
    made = Table(box=None, pad_edge=False, show_header=headed)
    for i in used:
        made.add_column(titles[i], overflow="fold", no_wrap=i != longest)
    for row in rows:
        made.add_row(*(Text(printable(row[i])) for i in used))
    with console.capture() as captured:
        console.print(made)
    for line in captured.get().splitlines():
        console.out(line.rstrip(), highlight=False)
