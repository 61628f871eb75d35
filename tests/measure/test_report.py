"""The page: whole, alone, and safe against every name and text."""

import builtins
import re
from html.parser import HTMLParser

import pytest
from tests.measure import planted

from polyattn.errors import Unavailable
from polyattn.measure.charts import charts
from polyattn.measure.markup import Html, element
from polyattn.measure.page_facts import proof_rows
from polyattn.measure.report import render, write_page
from polyattn.measure.results import Measurement, TextRecord

NASTY = "<script>alert('1')</script>&\"$x_1$"


class Reader(HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.tags, self.ids, self.references, self.words = [], [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        for key, value in attributes:
            if key == "id":
                self.ids.append(value)
            if key in ("src", "href", "xlink:href", "action", "data"):
                self.references.append(value)

    def handle_data(self, data):
        self.words.append(data)


@pytest.fixture(scope="module")
def page():
    made = planted.comparison()
    return render(made, list(charts(made)))


def test_the_page_holds_figures_and_charts(page):
    reader = Reader(page)
    words = " ".join(reader.words)
    assert reader.tags.count("figure") == 6
    for said in ("Forward pass", "Learning the text", "2.56 ms", "n-gram, order 1", "a note"):
        assert said in words
    assert len(page) < 1_500_000


def test_the_page_needs_no_network(page):
    reader = Reader(page)
    assert "script" not in reader.tags
    assert "link" not in reader.tags
    assert "img" not in reader.tags
    assert all(reference.startswith("#") for reference in reader.references)
    assert not re.search(r"url\((?!#)", page)
    assert "@import" not in page


def test_no_id_is_met_twice_and_each_reference_is_answered(page):
    reader = Reader(page)
    assert len(reader.ids) == len(set(reader.ids))
    used = {r.removeprefix("#") for r in reader.references}
    used |= set(re.findall(r"url\(#([^)]+)\)", page))
    assert used <= set(reader.ids)


def test_no_colour_of_a_chart_is_fixed(page):
    drawn = page[page.index("<figure") : page.rindex("</figure>")]
    assert "var(--series-0)" in drawn
    assert not re.search(r"#0[0-9]{5}", drawn)
    fixed = set(re.findall(r"(?:stroke|fill): ?(#[0-9a-f]{6})", drawn))
    assert fixed <= {"#ffffff"}, fixed


def test_lines_differ_without_colour(page):
    dashes = set(re.findall(r"stroke-dasharray: ?([^;\"]+)", page))
    assert len(dashes) >= 2


def test_every_name_and_text_is_escaped():
    text = TextRecord(source=NASTY, default=False, size=9, used=9, sha256="0" * 64, held_out=1)
    names = (NASTY, NASTY + "2")
    broken = Measurement(variant=names[1], length=4096, reason=NASTY)
    made = planted.comparison(names, notes=(NASTY,))
    lengths = (*made.lengths, planted.length_run(4096, planted.measured(NASTY, 4096, 0.1), broken))
    plan = planted.plan(names, lengths=(512, 2048, 4096), text=text)
    made = made.model_copy(update={"plan": plan, "lengths": lengths})
    page = render(made, list(charts(made)))
    reader = Reader(page)
    assert "script" not in reader.tags
    assert "<script" not in page
    assert " ".join(reader.words).count("alert('1')") > 10
    # In the legend of each chart a name is a name, not mathematics.
    drawn = Reader(page[page.index("<figure") : page.rindex("</figure>")])
    assert drawn.words.count(NASTY) == 6


def test_what_is_not_markup_is_escaped():
    assert element("p", "a<b", Html("<i>"), title='"&') == '<p title="&quot;&amp;">a&lt;b<i></p>'


@pytest.mark.parametrize(
    "changes",
    [
        {"lengths": (), "learning": (), "ngrams": (), "machine": None, "complete": False},
        {"learning": ()},
        {"lengths": planted.comparison().lengths[:1]},
    ],
)
def test_a_partial_run_has_a_page(changes):
    made = planted.comparison(**changes)
    page = render(made, list(charts(made)))
    assert ("interrupted" in page) is (not made.complete)


def test_without_matplotlib_the_way_out_is_said(monkeypatch, tmp_path):
    real = builtins.__import__

    def refuse(name, *arguments, **options):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(Unavailable, match=r"pip install 'polyattn\[report\]'"):
        write_page(planted.comparison(), tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_the_page_says_who_answered_and_where_two_did_which():
    whole = planted.comparison()
    first, second = whole.lengths[0].measurements
    split = second.model_copy(update={"ran": {"forward": "a", "backward": "b"}})
    length = whole.lengths[0].model_copy(update={"measurements": (first, split)})
    rows = list(proof_rows(whole.model_copy(update={"lengths": (length,)})))
    assert [row[3] for row in rows] == ["base", "forward a, backward b"]
