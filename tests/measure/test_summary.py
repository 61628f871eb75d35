"""What the figures are said to mean: ratios, ties, doubts, remarks, and the table made of them."""

import pytest
from tests.measure import planted

from polyattn.measure.remarks import remarks
from polyattn.measure.results import UNFINISHED, Measurement
from polyattn.measure.summary import Cell, learning_noise, rows
from polyattn.measure.table import table_text


def row(comparison, name, length):
    return next(r for r in rows(comparison) if r.name == name and r.length == length)


def test_ratios_stand_beside_the_figures():
    fast = row(planted.comparison(), "fast", "512")
    assert fast.times[0] == Cell("2.56 ms", "0.50x")
    assert fast.times[1] == Cell("7.68 ms", "0.50x")
    assert fast.text == Cell("3.00", "1.20x")
    assert fast.copy == Cell("0.04", "0.04x")
    base = row(planted.comparison(), "base", "512")
    assert base.times[0] == Cell("5.12 ms", "1")


def test_differences_within_the_noise_are_ties():
    same = planted.measured("fast", 512, 0.00515)
    base = planted.measured("base", 512, 0.00512)
    tied = planted.comparison(lengths=(planted.length_run(512, base, same),))
    assert row(tied, "fast", "512").times[0].ratio == "tie"
    assert row(tied, "fast", "512").peaks[0].ratio == "tie"
    slower = planted.measured("fast", 512, 0.00530)
    apart = planted.comparison(lengths=(planted.length_run(512, base, slower),))
    assert row(apart, "fast", "512").times[0].ratio == "1.04x"


def test_a_noisier_baseline_makes_more_ties():
    base = planted.measured("base", 512, 0.00512)
    slower = planted.measured("fast", 512, 0.00530)
    run = planted.length_run(512, base, slower)
    again = planted.pass_run(planted.timing(0.0054, 0.0054, 0.0054))
    noisy = planted.comparison(lengths=(run.model_copy(update={"forward": again}),))
    assert row(noisy, "fast", "512").times[0].ratio == "tie"


def test_learning_within_the_spread_of_seeds_is_a_tie():
    assert learning_noise(planted.comparison(), "text") == pytest.approx(0.05)
    learning = list(planted.comparison().learning)
    learning[2] = planted.curve("fast", "text", 8.0, 3.0, 2.54)
    near = planted.comparison(learning=tuple(learning))
    assert row(near, "fast", "512").text == Cell("2.54", "tie")
    learning[1] = planted.curve("base", "text", 8.0, 3.0, 2.51, seed=1)
    steady = planted.comparison(learning=tuple(learning))
    assert row(steady, "fast", "512").text.ratio == "1.02x"


def test_seeds_beyond_the_plan_do_not_enter_the_figure():
    assert row(planted.comparison(), "base", "512").text.figure == "2.50"


def test_void_figures_are_marked_and_explained():
    measured = [planted.measured(name, 512, 0.01) for name in ("base", "fast")]
    void = planted.comparison(lengths=(planted.length_run(512, *measured, void=True),))
    assert row(void, "fast", "512").times[0].doubtful
    assert "?" in table_text(void)
    assert any("void" in remark and "1.40" in remark for remark in remarks(void))


def test_a_failed_variant_stays_in_the_table_with_its_reason():
    bad = [Measurement(variant="fast", length=n, reason="planted reason") for n in (512, 2048)]
    lengths = tuple(
        planted.length_run(m.length, planted.measured("base", m.length, 0.01), m) for m in bad
    )
    failed = planted.comparison(lengths=lengths, learning=())
    (line,) = (r for r in rows(failed) if r.name == "fast")
    assert (line.length, line.reason) == ("all", "planted reason")
    text = table_text(failed)
    assert "see below" in text
    assert text.count("planted reason") == 1


def test_a_variant_that_failed_at_one_length_keeps_the_others():
    base = [planted.measured("base", n, 0.01) for n in (512, 2048)]
    lengths = (
        planted.length_run(512, base[0], planted.measured("fast", 512, 0.01)),
        planted.length_run(2048, base[1], Measurement(variant="fast", length=2048, reason="why")),
    )
    half = planted.comparison(lengths=lengths)
    assert row(half, "fast", "512").times[0].figure == "10.0 ms"
    assert row(half, "fast", "2,048").reason == "why"


def test_a_variant_that_was_not_reached_is_still_there():
    early = planted.comparison(lengths=(), learning=(), ngrams=(), complete=False)
    assert [(r.name, r.reason) for r in rows(early)] == [
        ("base", "not reached"),
        ("fast", "not reached"),
    ]
    assert "interrupted" in next(iter(remarks(early)))


def test_without_a_baseline_there_are_figures_and_no_ratios():
    lone = planted.measured("fast", 512, 0.01)
    run = planted.length_run(512, lone)
    run = run.model_copy(update={"forward": planted.pass_run(None)})
    assert row(planted.comparison(lengths=(run,)), "fast", "512").times[0] == Cell("10.0 ms", "")


def test_the_table_holds_every_row_and_fits_its_width():
    text = table_text(planted.comparison())
    for words in ("base", "fast", "512", "2,048", "n-gram, order 1", "3.34", "0.50x"):
        assert words in text
    assert max(map(len, text.splitlines())) <= 116


def test_the_sight_of_a_narrowed_variant_is_told():
    said = " ".join(remarks(planted.comparison()))
    assert "fast learns with left=31: all its layers together see 62 tokens back" in said


def test_the_aim_is_said_to_be_reached_or_missed():
    for aim, verdict in ((2.6, "Aim reached"), (2.3, "Aim missed")):
        plan = planted.plan(aim=aim)
        assert any(verdict in remark for remark in remarks(planted.comparison(plan=plan)))
    assert not any("Aim" in remark for remark in remarks(planted.comparison()))


def test_an_interrupted_training_is_no_failure():
    cut = planted.curve("fast", "text", 8.0, 3.0)
    cut = cut.model_copy(update={"final": None, "reason": UNFINISHED})
    made = planted.comparison(learning=(cut,))
    assert row(made, "fast", "512").text.figure == "cut"
    assert row(made, "base", "512").text.figure == "-"
    assert not any("over" in remark and "seeds" in remark for remark in remarks(made))


def test_a_failed_training_is_told():
    learning = (*planted.comparison().learning[:2],)
    learning += (
        planted.curve("fast", "text", 8.0, 3.0).model_copy(update={"final": None, "reason": "nan"}),
    )
    failed = planted.comparison(learning=learning)
    assert row(failed, "fast", "512").text.figure == "failed"
    assert any("fast, learning text, seed 0: nan" in remark for remark in remarks(failed))
