"""``polyattn check file.py:thing --as hf | module | lm``: what is found out, said, and refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from polyattn.cli import main
from polyattn.errors import ConfigError
from polyattn.testing import Result, Status, run_checks
from polyattn.testing.doors.entrances import Flags, Opened, open_any

HERE = Path(__file__).parent
FILES = {"hf": "things_hf.py", "module": "things_modules.py", "lm": "things_models.py"}


def opened(
    door: str, name: str, flags: Flags | None = None, patience: float | None = None
) -> Opened:
    target = name if ":" in name else f"{HERE / FILES[door]}:{name}"
    return open_any(target, flags, door=door, patience=patience)


def run(door: Opened) -> list[Result]:
    return run_checks(door.checks(), on_fail="collect")


@pytest.mark.parametrize(
    ("door", "name", "words"),
    [
        ("module", "Attention", "x has the width 16"),
        ("module", "Attention", "padding goes to key_padding_mask as (B, S), where True is padd"),
        ("module", "Attention", "outputs hear later positions: not causal"),
        ("module", "Causal", "no output hears a later position: causal"),
        ("module", "StrictlyLeaky", "pairs hear what comes later: taken to be meant causal"),
        ("module", "SequenceFirst", "(S, B, E), the sequence first"),
        ("module", "Cross", "it attends to another sequence (context)"),
        ("module", "Cross", "it does not know the order of positions"),
        ("module", "TableLeftBehind", "float64 is taken, and computed in a narrower"),
        ("lm", "Model", "the vocabulary has 23 ids"),
        ("lm", "Model", "it takes lengths up to 32"),
        ("lm", "Model", "it decodes with a cache in past_key_values, asked for by use_cache=True"),
        ("lm", "Model", "padding goes to attention_mask as (B, S), where True is real"),
        ("lm", "LastAlone", "it is given targets"),
        ("lm", "OpensAColumn", "1 of 24 logits are -inf: they are left out"),
        ("lm", "SeesAll", "it is no causal model as it stands"),
        ("hf", "eager", "it does not go by module.is_causal"),
        ("hf", "eager", "rows without any key are judged with finfo.min"),
        ("hf", "capped", "softcap: never given a value"),
        ("hf", "fused", "it goes by module.is_causal"),
    ],
)
def test_what_was_found_out_is_said(door: str, name: str, words: str) -> None:
    notes = opened(door, name).notes
    assert any(words in note for note in notes), notes


def test_where_nothing_is_heard_the_verdict_does_not_praise() -> None:
    door = opened("module", "Deaf")
    results = run(door)
    assert all(result.status.good for result in results)
    told = "no position hears another: of attention nothing could be asked"
    assert door.verdict(results) == told


@pytest.mark.parametrize(
    ("door", "name", "start"),
    [
        ("module", "NeedsArguments", "it could not be asked: "),
        ("sdpa", "MergesWithoutPadding", "it could not be asked: "),
        ("module", "IsNaN", "not correct; "),
    ],
)
def test_a_wrong_way_in_does_not_make_code_incorrect(door: str, name: str, start: str) -> None:
    found = opened(door, f"{HERE / 'things_modules.py'}:{name}")
    assert found.verdict(run(found)).startswith(start)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("MergesWithoutPadding", "but it knows the order of positions, though no table"),
        ("SplitsByView", "heads split or merged without a transpose?"),
        ("IgnoresItsMask", "but its argument mask is never used"),
        ("AttendsOverTheBatch", "where (B, S, E) was meant, it attends over the batch"),
    ],
)
def test_a_suspicion_belongs_to_the_verdict(name: str, words: str) -> None:
    told = opened("module", name).verdict(())
    assert told.startswith("it breaks no rule that could be asked; not causal")
    assert words in told


def test_right_modules_are_not_suspected() -> None:
    for name in ("Attention", "Causal", "Cross", "Positioned"):
        assert "but" not in opened("module", name).verdict(())


def test_what_is_checked_with_other_numbers_is_said() -> None:
    notes = opened("module", "LeaksBehindAZeroProjection").notes
    assert any(note.startswith("out.weight: of zero or nearly so") for note in notes), notes
    assert not any("of zero or nearly so" in note for note in opened("module", "Attention").notes)


def test_a_model_that_hears_both_ways_is_right_where_it_is_meant_so() -> None:
    """As a masked language model does; without being told, its mask was forgotten."""
    meant = opened("lm", "SeesAll", Flags(not_causal=True))
    results = run(meant)
    assert [result.id for result in results if not result.status.good] == []
    assert meant.verdict(results).startswith("it breaks no rule; not causal; padding by")
    asked = {r.name for r in results if r.status is Status.PASSED}
    assert {"check_module_padding_equals_truncation", "check_lm_longest"} <= asked
    wrong = run(opened("lm", "MixesTheBatchBothWays", Flags(not_causal=True)))
    assert "check_module_batch_independence" in {r.name for r in wrong if not r.status.good}


def test_padding_at_the_end_alone_is_reported_where_no_positions_can_be_given() -> None:
    """It may be trained so; whoever takes positions and does not read them is wrong."""
    found = {}
    for name in ("PlacesOfSlots", "SlotsBesidePositions"):
        results = run(opened("lm", name))
        found[name] = {r.status for r in results if r.name == "check_lm_left_padding"}
    assert found["PlacesOfSlots"] == {Status.DOES_NOT_HOLD}
    assert found["SlotsBesidePositions"] == {Status.FAILED}


@pytest.mark.parametrize("name", ["TernaryWeights", "RoundedInputs"])
def test_what_trains_with_rounded_numbers_is_right_and_told(name: str) -> None:
    results = run(opened("module", name))
    assert [result.id for result in results if not result.status.good] == []
    told = [result.name for result in results if result.status is Status.DOES_NOT_HOLD]
    assert "check_module_nothing_straight_through" in told


def test_what_was_not_tried_belongs_to_the_verdict() -> None:
    told = {name: opened("hf", name).verdict(()) for name in ("capped", "windowed")}
    assert told["capped"].endswith("; not tried: softcap")
    assert "not tried" not in told["windowed"]


def test_what_explains_most_comes_first_and_in_words_of_transformers() -> None:
    door = opened("hf", "deaf_to_its_mask")
    bad = [result for result in run(door) if not result.status.good]
    assert bad[0].id == "check_mask_polarity_and_dtype[attention_mask]"
    assert "scores + attention_mask" in str(bad[0].failure)
    assert "check_hf_dropout" in {result.name for result in bad[1:]}
    assert any("closes nothing" in note and "as if True should" in note for note in door.notes)
    assert not any(note.startswith("masks go to") for note in door.notes)
    ids = [check.id for check in door.checks()]
    assert len(ids) == len(set(ids))


def test_a_table_of_positions_is_no_question() -> None:
    assert "it knows the order of positions" in opened("module", "Positioned").notes


@pytest.mark.parametrize(
    ("door", "name", "check", "words"),
    [
        ("module", "NeedsArguments", "check_thing_loads", "hand over an instance"),
        ("module", "ReturnsNothing", "check_module_output", "the output is a NoneType"),
        ("module", "IsNaN", "check_module_output", "the output is NaN"),
        ("module", "IsComplex", "check_module_output", "its parameters are complex (weight, bias)"),
        ("module", "Raises", "check_module_output", "CUDA is not here"),
        ("module", "Hangs", "check_module_output", "did not answer within 0.5 s"),
        ("module", "OddWidth", "check_module_output", "name another with --width"),
        ("lm", "ReturnsNothing", "check_module_output", "the output is a NoneType"),
        ("lm", "ClosedAtFirst", "check_module_output", "the output is infinite in 2 of"),
        ("lm", "Places", "check_module_output", "index out of range"),
        ("hf", "raises", "check_hf_output", "CUDA is not here"),
        ("hf", "with_sinks", "check_hf_output", "layer.sinks = ...; return f(layer"),
        ("hf", "of_the_config", "check_hf_output", "layer.config.attention_multiplier = ...;"),
        ("hf", "nothing", "check_hf_output", "it gives NoneType"),
        ("hf", "hangs", "check_hf_output", "did not answer within 0.5 s"),
    ],
)
def test_what_gives_no_answer_is_one_failed_result(
    door: str, name: str, check: str, words: str, tmp_path: Path
) -> None:
    if name == "Places":
        path = tmp_path / "places.py"
        path.write_text("import torch\nmodel = torch.nn.Embedding(1, 4)\n")
        name = f"{path}:model"
    found = opened(door, name, patience=0.5 if name.lower() == "hangs" else None)
    results = run(found)
    assert [result.name for result in results] == [check]
    assert words in results[0].reason
    assert found.verdict(results).startswith(("not correct", "it could not be asked"))


def test_a_fault_of_manners_is_one_finding_and_the_rest_goes_on() -> None:
    for name, check in (
        ("ShiftsItsInput", "check_module_inputs_not_mutated"),
        ("Prints", "check_module_global_state_untouched"),
        ("SetsTheThreads", "check_module_global_state_untouched"),
        ("DrawsInTheCall", "check_module_eval_deterministic"),
        ("UnusedLayer", "check_module_parameters_get_grad"),
    ):
        results = run(opened("module", name))
        assert {x.name for x in results if not x.status.good} == {check}, name
        assert len(results) > 20


def test_what_is_random_is_compared_with_nothing() -> None:
    results = run(opened("module", "DropsInEvaluation"))
    bad = {x.name for x in results if not x.status.good}
    assert bad == {"check_module_eval_deterministic"}
    assert any("its output is random" in x.reason for x in results)


COMPARES_NOTHING = {
    "check_module_output",
    "check_module_eval_deterministic",
    "check_module_inputs_not_mutated",
    "check_module_global_state_untouched",
    "check_module_parameters_get_grad",
}


@pytest.mark.parametrize(
    ("name", "more"),
    [("DropsInEvaluation", set()), ("CountsItsCalls", {"check_module_call_is_stateless"})],
)
def test_what_answers_otherwise_each_time_is_asked_what_can_be_told(
    name: str, more: set[str]
) -> None:
    asked = {x.name for x in opened("module", name).checks() if x.withheld is None}
    assert asked == COMPARES_NOTHING | more


def test_an_output_not_transposed_is_told_and_the_rest_goes_on() -> None:
    door = opened("hf", "not_transposed")
    results = run(door)
    assert {x.name for x in results if not x.status.good} == {"check_hf_output"}
    assert "out.transpose(1, 2)" in next(x.reason for x in results if not x.status.good)
    assert len(results) > 100


def test_flags_overrule_what_was_found_out() -> None:
    meant = run(opened("module", "Attention", Flags(causal=True)))
    assert "check_module_causality_by_gradient" in {x.name for x in meant if not x.status.good}
    wide = run(opened("module", "OddWidth", Flags(width=24)))
    assert [x.id for x in wide if not x.status.good] == []
    masked = opened("module", "Attention", Flags(mask_arg="key_padding_mask", true_means="attend"))
    assert any("key_padding_mask closes nothing" in note for note in masked.notes)
    few = opened("lm", "Bare", Flags(vocab=7))
    assert "the vocabulary has 7 ids (--vocab)" in few.notes
    cache = opened("lm", "Model", Flags(cache_arg="nothing"))
    assert any("nothing takes no cache" in note for note in cache.notes)


@pytest.mark.parametrize(
    ("door", "flags", "words"),
    [
        ("cuda", Flags(), "expected one of sdpa"),
        ("modul", Flags(), "did you mean 'module'"),
        ("lm", Flags(causal=True), "--causal belongs to --as sdpa or --as hf or --as module"),
        ("sdpa", Flags(width=8), "--width belongs to --as module, not to --as sdpa"),
        ("module", Flags(width=0), "--width 0: expected a positive number"),
    ],
)
def test_a_wrong_question_is_told_so(door: str, flags: Flags, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        open_any("nowhere.py:thing", flags, door=door)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("things_modules.py:Causal", "--as", "module"), 0, "it breaks no rule; causal"),
        (("things_modules.py:NaNForEmptyRows", "--as", "module"), 1, "check_module_fully_masked"),
        (("things_models.py:Bare", "--as", "lm", "--vocab", "9"), 0, "9 ids (--vocab)"),
        (("things_hf.py:flag_of_one_query", "--as", "hf"), 1, "check_hf_decoding_step"),
    ],
)
def test_the_command(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    code: int,
    words: str,
) -> None:
    monkeypatch.chdir(HERE)
    for form in ((), ("--json",)):
        monkeypatch.setattr("sys.argv", ["polyattn", "check", *arguments, *form])
        try:
            main.run()
            ended = 0
        except SystemExit as end:
            ended = int(end.code or 0)
        out = capsys.readouterr().out
        assert ended == code, out
        assert words in (out if not form else str(json.loads(out)) + words)
