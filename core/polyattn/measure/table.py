"""The table of a comparison on a terminal or in a text file."""

from __future__ import annotations

import io

from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from polyattn.measure.remarks import remarks
from polyattn.measure.results import Comparison
from polyattn.measure.summary import Cell, Row, rows

WIDTH = 116
"""Columns of the table where nobody says how many there are."""


def make_table(comparison: Comparison) -> Group:
    """The table and its remarks, to be printed by rich."""
    clock = "processor time" if comparison.plan.threads == 1 else "wall time"
    threads = "1 thread" if comparison.plan.threads == 1 else f"{comparison.plan.threads} threads"
    table = Table(
        title=f"causal attention, {comparison.plan.heads} heads of {comparison.plan.head_dim}, "
        f"float32, {threads}: least {clock}, peak memory, ratio to {comparison.plan.baseline}",
        title_justify="left",
        title_style="dim",
        box=None,
        header_style="bold",
        padding=(0, 2, 0, 0),
        pad_edge=False,
    )
    table.add_column("\nvariant", no_wrap=True)
    names = ["\ntokens", "time,\nforward", "time, with\nbackward"]
    names += ["memory,\nforward", "memory, with\nbackward"]
    names += ["text,\nbits/byte", "copy,\nright"] if comparison.plan.train else []
    for name in names:
        table.add_column(name, justify="right")
    for number, row in enumerate(rows(comparison)):
        if row.first and number:
            table.add_section()
        table.add_row(*_cells(row, comparison.plan.train))
    notes = [Text(f"- {remark}") for remark in remarks(comparison)]
    return Group(table, Padding(Group(*notes), (1, 0, 0, 0)))


def _cells(row: Row, trained: bool) -> list[Text]:
    learnt = [_styled(row.text), _styled(row.copy)] if trained else []
    name = Text(row.name if row.first else "")
    if row.reason and not row.times[0].ratio and row.times[0].figure == "-":
        missing = [Text("see below", style="yellow")] + [Text("-", style="dim")] * 3
    else:
        missing = [_styled(cell) for cell in (*row.times, *row.peaks)]
    return [name, Text(row.length), *missing, *learnt]


def _styled(cell: Cell) -> Text:
    figure = Text(cell.figure + ("?" if cell.doubtful else ""))
    if cell.ratio:
        style = "dim" if cell.ratio == "1" else "cyan" if cell.ratio == "tie" else "bold"
        figure.append(" ")
        figure.append(f"{cell.ratio:>5}", style=style)
    return figure


def table_text(comparison: Comparison, width: int = WIDTH) -> str:
    """The table as plain characters."""
    page = io.StringIO()
    console = Console(file=page, width=width, color_system=None)
    console.print(make_table(comparison))
    return "\n".join(line.rstrip() for line in page.getvalue().splitlines()) + "\n"
