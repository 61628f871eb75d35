"""The doors: code as people write it passes without a false alarm, faults are named."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from polyattn.errors import ConfigError
from polyattn.testing import Result, Status, iter_checks, run_checks
from polyattn.testing.doors.sdpa import Door, Wishes, open_door
from polyattn.testing.process.settings import settings

THINGS = Path(__file__).with_name("things.py")


def opened(name: str, wishes: Wishes | None = None) -> Door:
    target = name if ":" in name else f"{THINGS}:{name}"
    return open_door(target, wishes)


def run(door: Door, *names: str) -> list[Result]:
    """All results of a door, or those of some checks."""
    checks = list(door.findings)
    if door.subject is not None:
        checks += iter_checks(door.subject)
    wanted = [check for check in checks if not names or check.id.partition("[")[0] in names]
    return run_checks(wanted, on_fail="collect")


def failed(results: list[Result]) -> list[str]:
    return [f"{result.id}: {result.reason}" for result in results if not result.status.good]


def status_of(results: list[Result], name: str) -> set[str]:
    return {str(result.status) for result in results if result.name == name}


@pytest.mark.parametrize(
    "name",
    [
        "torch.nn.functional:scaled_dot_product_attention",
        "bare",
        "causal_flag",
        "masked",
        "by_hand",
        "causal_by_hand",
        "grouped",
        "softmax_in_float32",
        "online",
        "TrueIsMasked",
        "floats_alone",
        "reshapes",
        "only_pairs",
        "only_padding",
        "make_attention",
        "a_tuple",
        "in_blocks_of_64",
        "square_only",
    ],
)
def test_correct_code_passes_without_a_false_alarm(name: str) -> None:
    results = run(opened(name))
    assert failed(results) == []
    assert status_of(results, "check_matches_reference") == {"passed"}


@pytest.mark.parametrize("name", ["linear_kernel", "window_of_three"])
def test_another_kind_of_attention_passes_without_a_reference(name: str) -> None:
    results = run(opened(name, Wishes(reference="none")))
    # elu + 1 as it is usually written loses very negative features: that one is no false alarm.
    known = "check_rows_sum_to_one[around-20-float32]"
    assert [told for told in failed(results) if not told.startswith(known)] == []
    assert status_of(results, "check_matches_reference") == {"not run"}


@pytest.mark.parametrize(
    ("name", "checks"),
    [
        ("without_scale", {"check_matches_reference"}),
        ("softmax_over_queries", {"check_matches_reference", "check_rows_sum_to_one"}),
        ("strict_causal", {"check_matches_reference", "check_causality_by_gradient"}),
        ("with_epsilon", {"check_matches_reference", "check_rows_sum_to_one"}),
        ("loses_long_keys", {"check_matches_reference", "check_length_not_multiple_of_block"}),
        ("dropout_left_on", {"check_eval_deterministic_and_rng_neutral"}),
        ("ignores_its_mask", {"check_mask_polarity_and_dtype", "check_padding_equals_truncation"}),
        ("mask_of_minus_ten", {"check_masked_logits_cannot_win"}),
        ("nan_for_empty_rows", {"check_fully_masked_rows"}),
        ("bias_after_scaling_twice", {"check_mask_polarity_and_dtype"}),
        ("flag_ignored", {"check_causality_by_gradient", "check_causality_by_perturbation"}),
        ("tiles_heads", {"check_gqa_equals_repeated_kv"}),
        ("remembers_masks", {"check_call_is_stateless"}),
        ("louder_batch", {"check_batch_independence"}),
        ("leaks_when_loud", {"check_causality_by_perturbation"}),
    ],
)
def test_a_fault_is_named(name: str, checks: set[str]) -> None:
    results = run(opened(name), *checks)
    assert {r.name for r in results if r.status is Status.FAILED} >= checks


@pytest.mark.parametrize(
    ("name", "check", "words"),
    [
        ("a_dict", "check_output_shape_dtype_device", "a dict is returned"),
        ("weights_first", "check_output_shape_dtype_device", "entry 1 of a tuple"),
        ("another_shape", "check_output_shape_dtype_device", "(2, 6, 2, 8), expected"),
        ("another_dtype", "check_output_shape_dtype_device", "dtype torch.float32, expected"),
        ("nan", "check_output_shape_dtype_device", "NaN"),
        ("raises", "check_output_shape_dtype_device", "RuntimeError: CUDA is not here"),
        ("raises_later", "check_length_not_multiple_of_block", "IndexError: no table beyond 20"),
        ("prints", "check_global_state_untouched", "printed 'scores"),
        ("writes_to_q", "check_inputs_not_mutated", "q was written to"),
        ("changes_settings", "check_global_state_untouched", "the default dtype from"),
        ("seeds", "check_eval_deterministic_and_rng_neutral", "global random state"),
        ("TakesIds", "check_output_shape_dtype_device", "another door? --as module for x"),
        ("imports_what_is_missing", "check_output_shape_dtype_device", "ModuleNotFoundError"),
        ("NeedsArguments", "check_thing_loads", "without arguments raised TypeError"),
    ],
)
def test_bad_manners_are_one_finding_and_the_rest_goes_on(
    name: str, check: str, words: str
) -> None:
    before = settings(), torch.get_rng_state()
    results = run(opened(name))
    bad = [result for result in results if not result.status.good]
    assert {result.name for result in bad} >= {check}
    told = [f"{result.reason} {result.failure}" for result in bad if result.name == check]
    assert any(words in text for text in told), told
    assert settings() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])
    if name not in ("raises_later",):
        assert {result.name for result in bad} == {check}, failed(results)


def test_what_is_wrong_at_some_lengths_is_no_memory() -> None:
    results = run(opened("loses_keys_beyond_sixteen"), "check_call_is_stateless")
    assert len(results) > 1
    assert failed(results) == []


def test_one_fault_does_not_show_as_many() -> None:
    bad = {result.name for result in run(opened("annotated")) if not result.status.good}
    assert bad == {"check_fully_masked_rows"}


def test_what_was_found_out_is_said() -> None:
    assert "it matches full softmax attention" in opened("by_hand").notes
    assert "it matches causal softmax attention" in opened("causal_by_hand").notes
    assert any("aligns at the first key" in note for note in opened("causal_flag").notes)
    assert any("where True is masked" in note for note in opened("TrueIsMasked").notes)
    assert "the logits are not scaled" in failed(run(opened("without_scale")))[0]


def test_flags_overrule_what_was_found_out() -> None:
    meant = run(opened("by_hand", Wishes(causal=True)), "check_matches_reference")
    assert "asked for as causal, but it is full" in failed(meant)[0]
    wishes = Wishes(mask_arg="mask", true_means="attend")
    assert failed(run(opened("TrueIsMasked", wishes), "check_mask_polarity_and_dtype"))
    named = run(opened("by_hand", Wishes(mask_arg="nothing")), "check_mask_polarity_and_dtype")
    assert "nothing takes no mask: TypeError" in failed(named)[0]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("import polyattn_nothing_of_the_kind\n", "ModuleNotFoundError"),
        ("raise SystemExit(3)\n", "SystemExit"),
    ],
)
def test_a_file_that_cannot_be_imported_is_a_finding(
    tmp_path: Path, source: str, words: str
) -> None:
    path = tmp_path / "released.py"
    path.write_text(source)
    results = run(open_door(f"{path}:attend"))
    assert [result.name for result in results] == ["check_thing_loads"]
    assert words in results[0].reason


def test_a_file_that_meddles_when_imported_is_a_finding_and_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "meddling.py"
    lines = ["import torch", "print('hello')", "torch.set_default_dtype(torch.float64)"]
    path.write_text("\n".join([*lines, "def attend(q, k, v): return v.softmax(-1)"]))
    results = run(open_door(f"{path}:attend"))
    told = [result.reason for result in results if result.name == "check_thing_loads"]
    assert "changed the default dtype" in told[0]
    assert len(results) > 20
    assert torch.get_default_dtype() == torch.float32


def test_neighbours_of_a_file_can_be_imported(tmp_path: Path) -> None:
    (tmp_path / "polyattn_neighbour.py").write_text("SCALE = 0.5\n")
    path = tmp_path / "near.py"
    path.write_text("import polyattn_neighbour\nattend = lambda q, k, v: v\n")
    assert open_door(f"{path}:attend").subject is not None


LATE = """
import torch
class InInit(torch.nn.Module):
    def __init__(self):
        super().__init__()
        import {0}
        self.scale = {0}.SCALE
    def forward(self, q, k, v):
        return torch.softmax(q @ k.mT * self.scale(q), -1) @ v
class InForward(torch.nn.Module):
    def forward(self, q, k, v):
        from {0} import SCALE
        return torch.softmax(q @ k.mT * SCALE(q), -1) @ v
class OfNothing(torch.nn.Module):
    def __init__(self):
        super().__init__()
        import polyattn_nothing_of_the_kind
"""


@pytest.mark.parametrize("name", ["InInit", "InForward"])
def test_neighbours_of_a_file_can_be_imported_late(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    near = f"polyattn_near_{name.lower()}"
    (tmp_path / f"{near}.py").write_text("SCALE = lambda q: q.shape[-1] ** -0.5\n")
    path = tmp_path / "late.py"
    path.write_text(LATE.format(near))
    results = run(open_door(f"{path}:{name}"), "check_matches_reference", "check_thing_loads")
    assert [result.status for result in results] == [Status.PASSED] * len(results)
    assert results


def test_an_instance_is_asked_for_only_where_arguments_are_missing(tmp_path: Path) -> None:
    path = tmp_path / "late.py"
    path.write_text(LATE.format("unused"))
    reason = run(open_door(f"{path}:OfNothing"))[0].reason
    assert "ModuleNotFoundError" in reason
    assert "hand over an instance" not in reason


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("nowhere.py:attend", "no such file"),
        ("things.py", "expected file.py:thing"),
        (f"{THINGS}:by_hnad", "did you mean 'by_hand'"),
        (f"{THINGS}:not_callable", "expected a function, a class or a module"),
        ("polyattn_no_such:thing", "no such module or file"),
    ],
)
def test_a_wrong_target_is_a_question_that_is_wrong(target: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        open_door(target)


def test_a_mask_that_is_dropped_beside_the_causal_flag_is_found() -> None:
    results = run(opened("flag_beats_mask"))
    bad = {result.name for result in results if not result.status.good}
    assert "check_causal_with_padding" in bad
    assert not bad & {"check_matches_reference", "check_causality_by_gradient"}


def test_lengths_that_come_in_blocks_are_found_out() -> None:
    door = opened("blocks_of_two")
    assert door.subject is not None
    assert door.subject.capabilities.lengths.multiple_of == 2
    assert failed(run(door)) == []


def test_a_width_that_is_fixed_is_found_out_without_a_reference_too() -> None:
    door = opened("one_width", Wishes(reference="none"))
    assert door.subject is not None
    assert door.subject.width == 8
    assert "made for a width of 8" in " ".join(door.notes)
    assert failed(run(door)) == []
