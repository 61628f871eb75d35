"""From words on the command line to a plan; wrong words are answered in one line."""

import pytest

from polyattn.errors import ConfigError, UnknownName
from polyattn.measure.machine import available_bytes
from polyattn.measure.plan import CONTEXT, make_plan, open_text
from polyattn.measure.text import Text
from polyattn.registry import Entry, Registry
from polyattn.spec import ComparisonSpec, VariantSpec

TEXT = Text("book.txt", False, b"a" * 5000, 5000)


def entry(name, reason=""):
    spec = VariantSpec(name=name, target="somewhere:Something")
    return Entry(spec=spec, distribution="tests", label="tests:planted", reason=reason)


REGISTRY = Registry(
    entries=(entry("base"), entry("fast"), entry("missing", "no module named 'gone'")),
    comparison=ComparisonSpec(variants=("base", "fast"), baseline="base"),
)


def test_the_registry_says_what_is_compared_by_default():
    plan = make_plan(REGISTRY, TEXT)
    assert (plan.variants, plan.baseline) == (("base", "fast"), "base")
    assert plan.lengths == (512, 2048, 8192)
    assert (plan.seeds, plan.baseline_seeds, plan.aim) == ((0,), (1,), None)


def test_a_full_run_trains_two_seeds_within_three_thousand_steps():
    plan = make_plan(REGISTRY, open_text(None), full=True, seed=7)
    assert plan.seeds == (7, 8)
    assert all(task.steps <= 3000 for task in plan.tasks.values())
    assert plan.aim == 2.3


def test_the_baseline_is_added_in_front():
    assert make_plan(REGISTRY, TEXT, variants=("fast",)).variants == ("base", "fast")
    assert make_plan(REGISTRY, TEXT, variants=("fast", "base")).variants == ("fast", "base")


def test_a_variant_that_cannot_be_used_here_stays():
    assert make_plan(REGISTRY, TEXT, variants=("missing",)).variants == ("base", "missing")


def test_lengths_are_sorted():
    assert make_plan(REGISTRY, TEXT, lengths=(64, 16)).lengths == (16, 64)


@pytest.mark.parametrize(
    ("changes", "kind", "said"),
    [
        ({"variants": ("bse",)}, UnknownName, "did you mean 'base'"),
        ({"variants": ("base", "base")}, ConfigError, "'base' is named twice"),
        ({"variants": ()}, ConfigError, "--variants: expected names"),
        ({"lengths": ()}, ConfigError, "--lengths: expected numbers"),
        ({"lengths": (0,)}, ConfigError, "--lengths: 0: expected 1 token or more"),
        ({"lengths": (-5,)}, ConfigError, "--lengths: -5: expected 1 token or more"),
        ({"lengths": (8, 8)}, ConfigError, "8 is named twice"),
        ({"threads": 0}, ConfigError, "--threads: 0: expected 1 to"),
        ({"threads": 10_000}, ConfigError, "--threads: 10000: expected 1 to"),
        ({"seed": -1}, ConfigError, "--seed: -1: expected an integer from 0"),
    ],
)
def test_wrong_words(changes, kind, said):
    with pytest.raises(kind, match=said) as caught:
        make_plan(REGISTRY, TEXT, **changes)
    assert "\n" not in str(caught.value)


def test_without_plugins_or_a_comparison_the_way_out_is_said():
    with pytest.raises(ConfigError, match="no plugin found; for a checkout: `make`"):
        make_plan(Registry(), TEXT)
    with pytest.raises(ConfigError, match="no plugin names a comparison"):
        make_plan(Registry(entries=(entry("base"),)), TEXT)


def test_a_text_of_two_contexts_is_enough(tmp_path):
    (tmp_path / "a").write_bytes(b"a" * 2 * (CONTEXT + 1))
    assert len(open_text(tmp_path / "a").data) == 258
    (tmp_path / "b").write_bytes(b"a" * CONTEXT)
    with pytest.raises(ConfigError, match="shorter than one context"):
        open_text(tmp_path / "b")


def test_lengths_that_cannot_fit_in_memory_are_refused_before_anything_starts(monkeypatch):
    monkeypatch.setattr("polyattn.measure.plan.available_bytes", lambda: 2**30)
    assert make_plan(REGISTRY, TEXT, lengths=(65536,)).lengths == (65536,)
    with pytest.raises(ConfigError, match=r"--lengths: 65537: .*expected at most 65536 tokens"):
        make_plan(REGISTRY, TEXT, lengths=(64, 65537))


def test_the_memory_that_is_there_is_a_number_of_bytes_or_unknown():
    known = available_bytes()
    assert known is None or known > 2**20
