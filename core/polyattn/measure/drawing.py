"""How a chart is drawn: styles that need no colour, colours that follow the page, SVG to inline.

Colours are written as placeholders and replaced by the page's CSS variables, so that a chart
follows the page from light to dark.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from polyattn.measure.results import Comparison

SERIES = 8
MARKERS = "os^DvPX*"
DASHES = (
    (),
    (6, 2),
    (2, 1.5),
    (7, 2, 1.5, 2),
    (4, 1.5),
    (1, 1.2),
    (9, 2),
    (5, 1.5, 1, 1.5, 1, 1.5),
)
"""Line styles in points on and off; the empty one is solid."""

_INK, _MUTED, _GRID, _SURFACE = "#010101", "#020202", "#030303", "#040404"
_PLACEHOLDERS = {
    _INK: "var(--ink)",
    _MUTED: "var(--muted)",
    _GRID: "var(--grid)",
    _SURFACE: "var(--surface)",
    **{f"#05000{n}": f"var(--series-{n})" for n in range(SERIES)},
}
REFERENCE = {"color": _MUTED, "linewidth": 1.2, "dashes": (1, 2), "zorder": 1}
_SIZE = (5.6, 3.7)


@dataclass(frozen=True)
class Chart:
    """title, unit (of the vertical axis) and caption are plain text, svg is markup."""

    title: str
    unit: str
    caption: str
    svg: str


def style_of(comparison: Comparison, name: str) -> int:
    """The number of a variant's colour, marker and line style."""
    return comparison.plan.variants.index(name) % SERIES


def settings() -> Any:
    """matplotlib's settings for every chart."""
    return {
        "svg.fonttype": "none",
        "font.family": "sans-serif",
        "font.size": 10,
        "text.color": _INK,
        "axes.edgecolor": _MUTED,
        "axes.labelcolor": _MUTED,
        "axes.linewidth": 0.8,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": _GRID,
        "grid.linewidth": 0.8,
        "xtick.color": _MUTED,
        "ytick.color": _MUTED,
        "xtick.labelcolor": _INK,
        "ytick.labelcolor": _INK,
        "legend.frameon": False,
        "figure.constrained_layout.use": True,
        "savefig.transparent": True,
    }


def line_of(comparison: Comparison, name: str) -> dict[str, Any]:
    """How the line of a variant looks: never by colour alone."""
    number = style_of(comparison, name)
    return {
        "label": name,
        "color": f"#05000{number}",
        "marker": MARKERS[number],
        "dashes": DASHES[number] or (None, None),
        "linewidth": 2,
        "markersize": 7,
        "markeredgecolor": _SURFACE,
        "markeredgewidth": 1,
        "zorder": 3,
    }


def note(axes: Any, x: float, y: float, text: str) -> None:
    """Small words at the right end of a line."""
    axes.annotate(
        text,
        (x, y),
        xytext=(0, 3),
        textcoords="offset points",
        ha="right",
        va="bottom",
        color=_MUTED,
        fontsize=8.5,
        zorder=2,
    )


def make_chart(
    title: str, unit: str, caption: str, across: str, draw: Callable[[Any], None]
) -> Chart:
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=_SIZE)
    FigureCanvasSVG(figure)
    axes = figure.add_subplot()
    draw(axes)
    axes.set_xlabel(across)
    handles, labels = axes.get_legend_handles_labels()
    legend = figure.legend(
        handles, labels, loc="outside upper left", ncols=3, handlelength=3.2, borderaxespad=0
    )
    for words in legend.get_texts():
        # A name is a name, whatever signs of mathematics it holds.
        words.set_parse_math(False)
    page = io.StringIO()
    figure.savefig(page, format="svg", metadata={"Date": None, "Creator": None})
    return Chart(title, unit, caption, _inline(page.getvalue(), title))


def _inline(svg: str, title: str) -> str:
    """A whole SVG file as a part of a page: no prologue, its own ids, the page's colours."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    for placeholder, variable in _PLACEHOLDERS.items():
        svg = svg.replace(placeholder, variable)
    # Several figures share one page: an id must not be met twice.
    own = re.sub(r"\W+", "-", title.lower())
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{own}-\1"', svg)
    svg = re.sub(r'href="#([^"]+)"', rf'href="#{own}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{own}-\1)", svg)
    return re.sub(r'<svg ([^>]*?)width="[^"]*"', r'<svg role="img" \1', svg, count=1).replace(
        "height=", "data-height=", 1
    )
