"""The page of a comparison: one HTML file that opens without a network.

Everything that comes from outside (names, paths, reasons) goes through ``markup``, which escapes
it. The charts need matplotlib, which the extra ``report`` brings.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources
from pathlib import Path

from polyattn.measure.charts import charts
from polyattn.measure.drawing import DASHES, Chart, style_of
from polyattn.measure.markup import Html, element, join
from polyattn.measure.page_facts import machine_facts, proof_rows
from polyattn.measure.remarks import remarks
from polyattn.measure.results import Comparison
from polyattn.measure.summary import EVERY_LENGTH, Cell, Row, rows

_HEADS = (
    "variant",
    "tokens",
    "time, forward",
    "time, with backward",
    "memory, forward",
    "memory, with backward",
)
_LEARNT = ("text, bits/byte", "copy, right")


def write_page(comparison: Comparison, path: Path) -> None:
    """Write the page. Raises: Unavailable where matplotlib is not installed."""
    path.write_text(render(comparison, list(charts(comparison))), encoding="utf-8")


def render(comparison: Comparison, drawn: list[Chart]) -> str:
    """The whole page as text. drawn: the charts, in their order."""
    style = resources.files("polyattn.measure").joinpath("page.css").read_text(encoding="utf-8")
    title = f"polyattn compare: {', '.join(comparison.plan.variants)}"
    body = element("main", *_sections(comparison, drawn))
    head = element(
        "head",
        Html('<meta charset="utf-8">'),
        Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        element("title", title),
        element("style", Html(style)),
    )
    return "<!doctype html>\n" + element("html", head, element("body", body), lang="en") + "\n"


def _sections(comparison: Comparison, drawn: list[Chart]) -> Iterator[Html]:
    table = list(rows(comparison))
    yield _header(comparison)
    if not comparison.complete:
        note = element("p", "This run was interrupted. The page shows what it had until then.")
        yield element("section", note, class_="panel warn")
    yield element("h2", _cards_title(comparison))
    yield element("div", *_cards(comparison, table), class_="cards")
    if drawn:
        yield element("h2", "Charts")
        yield element("div", *(_figure(chart) for chart in drawn), class_="charts")
    yield element("h2", "Every figure")
    yield element("div", _table(comparison, table), class_="panel scroll")
    yield element("h2", "To be read with it")
    lines = [element("li", remark) for remark in remarks(comparison)]
    yield element("div", element("ul", *lines), class_="panel small")
    yield element("h2", "How it was measured")
    yield element("div", *_method(comparison), class_="panel small")


def _header(comparison: Comparison) -> Html:
    plan = comparison.plan
    length = "full" if plan.full else "short"
    facts = (
        f"Text: {plan.text.source} ({plan.text.used:,} bytes). A {length} run of "
        f"{comparison.seconds:,.0f} s, begun {comparison.started.replace('T', ' ')[:16]} UTC."
    )
    return element(
        "header",
        element("h1", "Attention variants, side by side"),
        element("p", facts, class_="muted"),
    )


def _cards_title(comparison: Comparison) -> str:
    if not comparison.lengths:
        return "In short"
    return f"In short, at {comparison.lengths[-1].length:,} tokens"


def _cards(comparison: Comparison, table: list[Row]) -> Iterator[Html]:
    longest = f"{comparison.lengths[-1].length:,}" if comparison.lengths else ""
    for name in comparison.plan.variants:
        own = [row for row in table if row.name == name]
        at = next((row for row in own if row.length in (longest, EVERY_LENGTH)), own[0])
        learnt = own[0]
        lines = [
            ("forward", at.times[0]),
            ("with backward", at.times[1]),
            ("its memory", at.peaks[1]),
            ("text, bits/byte", learnt.text),
            ("copy, right", learnt.copy),
        ]
        lines = lines if comparison.plan.train else lines[:3]
        title = element("h3", _swatch(comparison, name), name)
        if at.reason:
            body = element("p", at.reason, class_="reason small")
        else:
            body = element("dl", *(_line(label, cell) for label, cell in lines))
        yield element("section", title, body, class_="panel card")


def _line(label: str, cell: Cell) -> Html:
    figure = cell.figure + ("?" if cell.doubtful else "")
    ratio = element("dd", _multiplied(cell.ratio), class_="ratio")
    return join([element("dt", label), element("dd", figure), ratio])


def _multiplied(ratio: str) -> str:
    return ratio.replace("x", "\N{MULTIPLICATION SIGN}")


def _figure(chart: Chart) -> Html:
    caption = element("figcaption", chart.caption, class_="small")
    unit = element("span", chart.unit, class_="muted small")
    title = element("h3", chart.title, Html(" "), unit)
    return element("figure", title, Html(chart.svg), caption, class_="panel")


def _table(comparison: Comparison, table: list[Row]) -> Html:
    names = (*_HEADS, *_LEARNT) if comparison.plan.train else _HEADS
    head = element("tr", *(element("th", name, scope="col") for name in names))
    body = [_table_row(comparison, row) for row in table]
    return element("table", element("thead", head), element("tbody", *body))


def _table_row(comparison: Comparison, row: Row) -> Html:
    known = row.first and row.name in comparison.plan.variants
    name: list[str] = [_swatch(comparison, row.name)] if known else []
    name += [row.name] if row.first else []
    cells = [element("td", *name, class_="name"), element("td", row.length)]
    if row.reason:
        cells.append(element("td", row.reason, class_="reason", colspan="4"))
    else:
        cells += [_cell(cell) for cell in (*row.times, *row.peaks)]
    if comparison.plan.train:
        cells += [_cell(row.text), _cell(row.copy)]
    return element("tr", *cells, class_="first" if row.first else "more")


def _cell(cell: Cell) -> Html:
    if not cell.ratio:
        return element("td", cell.figure)
    kind = {"1": "ratio one", "tie": "ratio tie"}.get(cell.ratio, "ratio")
    ratio = element("span", element("span", _multiplied(cell.ratio)), class_=kind)
    return element("td", cell.figure + ("?" if cell.doubtful else ""), Html(" "), ratio)


def _swatch(comparison: Comparison, name: str) -> Html:
    """A short piece of the line that stands for a variant in every chart."""
    number = style_of(comparison, name)
    colour = f"var(--series-{number})"
    line = element(
        "line",
        x1="1",
        y1="8",
        x2="39",
        y2="8",
        stroke=colour,
        stroke_width="2.5",
        stroke_dasharray=" ".join(str(part) for part in DASHES[number]) or "none",
    )
    mark = element("path", d=_MARKS[number], fill=colour, stroke="var(--surface)")
    return element("svg", line, mark, width="40", height="16", aria_hidden="true")


_MARKS = (
    "M20 3.5a4.5 4.5 0 1 0 .01 0z",
    "M15.7 3.7h8.6v8.6h-8.6z",
    "M20 2.6l5.2 9.6h-10.4z",
    "M20 2.4l5 5.6-5 5.6-5-5.6z",
    "M20 13.4l5.2-9.6h-10.4z",
    "M18.2 3h3.6v3.2h3.2v3.6h-3.2v3.2h-3.6v-3.2h-3.2v-3.6h3.2z",
    "M16 3l4 2.6 4-2.6 1 1-2.6 4 2.6 4-1 1-4-2.6-4 2.6-1-1 2.6-4-2.6-4z",
    "M20 2l1.7 4h4.2l-3.4 2.6 1.3 4.2-3.8-2.6-3.8 2.6 1.3-4.2-3.4-2.6h4.2z",
)
"""The markers of the charts, drawn around (20, 8)."""


def _method(comparison: Comparison) -> Iterator[Html]:
    clock = "processor time of the one thread" if comparison.plan.threads == 1 else "wall time"
    base = comparison.plan.baseline
    yield element(
        "p",
        f"Batch 1, {comparison.plan.heads} heads of {comparison.plan.head_dim}, float32, causal. "
        "Before anything is timed, the output and the gradient of every input are compared with "
        "the variant's own definition in float64. Variants take turns, round after round, beside "
        f"{base} a second time and a matrix product as a yardstick. Shown is the least {clock}; "
        f"beside it the ratio to {base}, or a tie where the difference is within what {base} "
        "differs from itself. Memory is what tensors hold; scratch inside vendor libraries is "
        "not seen.",
    )
    facts = [
        part
        for key, value in machine_facts(comparison)
        for part in (element("dt", key), element("dd", value))
    ]
    yield element("dl", *facts, class_="facts")
    head = (
        "variant",
        "tokens",
        "query rows",
        "answered by",
        "output: error / allowed",
        "gradients",
    )
    lines = [
        element("tr", *(element("td", word) for word in line), class_="first")
        for line in proof_rows(comparison)
    ]
    table = element(
        "table",
        element("thead", element("tr", *(element("th", word, scope="col") for word in head))),
        element("tbody", *lines),
    )
    summary = element("summary", "What was proven before the timings")
    yield element("details", summary, element("div", table, class_="scroll"))
