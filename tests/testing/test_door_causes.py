"""The door names the cause of a fault, and that alone; right code in any style passes."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from tests.testing.things_faults import FAULTS
from tests.testing.things_right import RIGHT

from polyattn.errors import ConfigError
from polyattn.testing import Result, Status, run_checks
from polyattn.testing.doors.causes import DoorFailure, KnownFailure
from polyattn.testing.doors.load import look_for
from polyattn.testing.doors.sdpa import Door, Wishes, open_door

HERE = Path(__file__).parent
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")


def opened(name: str, wishes: Wishes | None = None, *, file: str = "things_faults") -> Door:
    return open_door(f"{HERE / file}.py:{name}", wishes)


def findings(door: Door) -> list[Result]:
    return run_checks(door.findings, on_fail="collect")


@pytest.mark.parametrize("name", RIGHT)
def test_right_code_in_any_style_passes(name: str) -> None:
    door = opened(name, file="things_right")
    results = run_checks(door.checks(), on_fail="collect")
    assert [f"{r.id}: {r.reason}" for r in results if not r.status.good] == []
    matched = {str(r.status) for r in results if r.name == "check_matches_reference"}
    # A causal flag of code that aligns at the first key is not asked for where L < S.
    assert "passed" in matched
    assert door.verdict(results).startswith("correct softmax attention")


@pytest.mark.parametrize(("name", "words"), FAULTS)
def test_the_cause_of_a_fault_is_named_and_no_other(name: str, words: str) -> None:
    results = findings(opened(name))
    told = [str(result.failure) for result in results]
    assert len(told) == 1, told
    assert isinstance(results[0].failure, KnownFailure)
    assert words in results[0].failure.cause.name
    assert "usual causes" not in told[0]


@pytest.mark.parametrize(
    "name",
    [
        "no_scale",
        "scaled_by_model",
        "over_queries",
        "small_epsilon",
        "overflows",
        "nothing_rescaled",
        "outputs_not_rescaled",
        "key_not_transposed",
        "viewed",
        "merged",
        "strict",
        "causal_by_ten_thousand",
        "mask_unused",
        "bert",
        "rows_of_nan",
        "bias_before_scale",
        "flag_strict",
        "tiled",
        "dropout_on",
    ],
)
def test_whatever_else_fails_follows_from_the_cause(name: str) -> None:
    door = opened(name)
    checks = {check.id: check for check in door.checks()}
    results = run_checks(checks.values(), on_fail="collect")
    found = {check.id for check in door.findings}
    others = [r.id for r in results if not r.status.good and r.id not in found]
    assert [id for id in others if not door.follows(checks[id])] == []
    assert "fix first: " in door.verdict(results)
    assert "besides" not in door.verdict(results)


def test_the_remedy_has_a_shape_that_the_door_takes(tmp_path: Path) -> None:
    path = tmp_path / "merged.py"
    path.write_text(
        "import math\n\n\ndef attend(q, k, v):\n"
        "    scores = q @ k.mT / math.sqrt(q.shape[-1])\n"
        "    out = scores.softmax(-1) @ v\n"
        "    return out.transpose(1, 2).reshape(out.shape)\n"
    )
    failure = findings(open_door(f"{path}:attend"))[0].failure
    assert isinstance(failure, KnownFailure)
    assert "heads and positions are mixed" in failure.cause.name
    assert failure.cause.write.startswith("return out  #")


def test_a_wrong_gradient_is_told_without_its_matrices(tmp_path: Path) -> None:
    path = tmp_path / "detached.py"
    path.write_text(
        "import math\n\n\ndef attend(q, k, v):\n"
        "    scores = q @ k.mT / math.sqrt(q.shape[-1])\n"
        "    odds = (scores - scores.amax(-1, keepdim=True)).exp()\n"
        "    return odds / odds.sum(-1, keepdim=True).detach() @ v\n"
    )
    checks = [x for x in open_door(f"{path}:attend").checks() if x.name == "check_gradcheck"]
    results = run_checks(checks, on_fail="collect")
    told = {result.reason for result in results if result.failure}
    assert told == {"Jacobian mismatch for output 0 of q"}


def test_reasons_are_sentences_and_true() -> None:
    door = open_door(f"{HERE / 'things.py'}:bare", Wishes(causal=True))
    reasons = {check.name: check.reason for check in door.checks()}
    assert "it is full attention, and was asked for as causal" in reasons.values()
    assert "no reference matched" not in reasons.values()
    door = open_door(f"{HERE / 'things.py'}:bare")
    reasons = {check.name: check.reason for check in door.checks()}
    expected = "no mask is claimed that could leave a row without a key"
    assert reasons["check_fully_masked_rows"] == expected
    inverted = findings(
        open_door(f"{HERE / 'things.py'}:TrueIsMasked", Wishes(true_means="attend"))
    )
    assert "mask full" not in str(inverted[0].failure)


def test_an_order_that_is_asked_for_is_not_found_out(tmp_path: Path) -> None:
    """Attention across the heads is right attention in another order."""
    path = tmp_path / "across.py"
    path.write_text(
        "import math\n\n\ndef attend(q, k, v):\n"
        "    q, k, v = (t.transpose(1, 2) for t in (q, k, v))\n"
        "    scores = q @ k.mT / math.sqrt(q.shape[-1])\n"
        "    return (scores.softmax(-1) @ v).transpose(1, 2)\n"
    )
    told = open_door(f"{path}:attend").verdict(())
    assert "reads (B, L, H, D), where (B, H, L, D) may have been meant" in told
    meant = open_door(f"{path}:attend", Wishes(layout="blhd"))
    assert "may have been meant" not in meant.verdict(())
    assert meant.subject is not None
    assert meant.subject.has_definition
    wrong = open_door(f"{path}:attend", Wishes(layout="bhld"))
    assert findings(wrong)[0].name == "check_matches_reference"


def test_a_second_fault_is_found_beside_the_first(tmp_path: Path) -> None:
    path = tmp_path / "both.py"
    path.write_text(
        "def attend(q, k, v):\n"
        "    out = (q @ k.mT).softmax(-1) @ v\n"
        "    return out.float() if q.shape[2] > 60 else out\n"
    )
    door = open_door(f"{path}:attend")
    results = run_checks(door.checks(), on_fail="collect")
    bad = {result.id for result in results if not result.status.good}
    assert "check_matches_reference[softmax]" in bad
    assert "check_matches_reference[square-seed0]" not in bad
    assert "check_length_not_multiple_of_block[length127]" in bad
    assert "besides: check_length_not_multiple_of_block" in door.verdict(results)


@pytest.mark.parametrize(
    ("name", "note"),
    [
        ("length_second", "it reads its inputs as (B, L, H, D)"),
        ("length_second_padded", "it reads its inputs as (B, L, H, D)"),
        ("length_first", "it reads its inputs as (L, B, H, D)"),
        ("channels_second", "it reads its inputs as (B, H, D, L)"),
        ("one_head", "it reads its inputs as (B, L, D)"),
        ("one_sequence", "it reads its inputs as (L, D)"),
        ("one_head_masked", "masks go to mask as (B, L, S), where True may attend"),
        ("by_ones", "masks go to attention_mask as (B, S), where True may attend"),
        ("gives_weights", "it gives 2 things: the first is taken for the output"),
        ("must_have_mask", "it must be given mask: called with mask=None"),
        ("must_have_tensor", "it must be given mask: an open mask"),
        ("over_eight", "its scale is 0.125 for every width: right for D = 64"),
        ("OwnWidth", "it takes no width of 8"),
    ],
)
def test_what_was_found_out_is_said(name: str, note: str) -> None:
    notes = opened(name, file="things_right").notes
    assert any(note in told for told in notes), notes


def test_fewer_dimensions_are_a_note_where_four_have_a_named_fault() -> None:
    assert any(
        "as a function of (B, L, D) it would be right" in note
        for note in opened("scaled_by_length").notes
    )


def test_attention_of_another_kind_is_read_in_its_own_order(tmp_path: Path) -> None:
    path = tmp_path / "linear.py"
    path.write_text(
        "import torch\n"
        "def attend(q, k, v):\n"
        "    q, k = q.softmax(-1), k.exp()\n"
        "    kv = torch.einsum('blhd,blhe->bhde', k, v)\n"
        "    return torch.einsum('blhd,bhde->blhe', q, kv) / torch.einsum(\n"
        "        'blhd,bhd->blh', q, k.sum(1)).unsqueeze(-1)\n"
    )
    door = open_door(f"{path}:attend", Wishes(reference="none"))
    assert any("(B, L, H, D)" in note for note in door.notes)
    results = run_checks(door.checks(), on_fail="collect")
    assert [r.id for r in results if not r.status.good] == []
    assert door.verdict(results).startswith("attention that breaks no rule, full")


def test_no_reference_is_not_advised_where_it_was_given(tmp_path: Path) -> None:
    """An epsilon in the denominator is no fault of a kernel, and is told."""
    path = tmp_path / "kernel.py"
    path.write_text(
        "import torch\nF = torch.nn.functional\n\n\ndef attend(q, k, v):\n"
        "    q, k = F.elu(q) + 1, F.elu(k) + 1\n"
        "    return q @ (k.mT @ v) / (q @ k.sum(-2, keepdim=True).mT + 1e-6)\n\n\n"
        "def clamped(q, k, v):\n"
        "    q, k = F.elu(q) + 1, F.elu(k) + 1\n"
        "    return q @ (k.mT @ v) / (q @ k.sum(-2, keepdim=True).mT).clamp(min=1e-3)\n"
    )
    wishes = Wishes(reference="none")
    door = open_door(f"{path}:attend", wishes)
    assert any("as with an epsilon in the denominator" in note for note in door.notes)
    results = run_checks(door.checks(), on_fail="collect")
    assert [r.id for r in results if not r.status.good] == []
    results = run_checks(open_door(f"{path}:clamped", wishes).checks(), on_fail="collect")
    told = [str(r.failure) for r in results if r.name == "check_rows_sum_to_one" and r.failure]
    assert told
    assert not any("--reference none" in text for text in told)


def test_a_flag_that_was_given_is_told_from_what_was_found_out() -> None:
    door = open_door(f"{HERE / 'things.py'}:TrueIsMasked", Wishes(true_means="mask"))
    assert "asked for: True is masked (--true-means mask)" in door.notes
    door = open_door(f"{HERE / 'things.py'}:causal_by_hand", Wishes(causal=True))
    assert "asked for: causal (--causal)" in door.notes
    door = open_door(f"{HERE / 'things.py'}:masked", Wishes(mask_arg="attn_mask"))
    assert "asked for: masks go to attn_mask (--mask-arg)" in door.notes
    door = open_door(f"{HERE / 'things.py'}:bare", Wishes(reference="none"))
    assert "asked for: no reference (--reference none)" in door.notes


def test_a_mask_that_means_the_other_is_named() -> None:
    door = open_door(f"{HERE / 'things.py'}:TrueIsMasked", Wishes(true_means="attend"))
    results = findings(door)
    assert isinstance(results[0].failure, KnownFailure)
    assert "the mask is inverted" in results[0].failure.cause.name


def test_a_mask_that_means_the_other_is_named_where_it_leaves_rows_without_a_key(
    tmp_path: Path,
) -> None:
    """A row in which all may attend is a row of NaN there: that is not what to mend first."""
    path = tmp_path / "inverted.py"
    path.write_text(
        "import math\n\n\ndef attend(q, k, v, mask=None):\n"
        "    scores = q @ k.mT / math.sqrt(q.shape[-1])\n"
        "    if mask is not None:\n"
        "        scores = scores.masked_fill(mask, -math.inf)\n"
        "    return scores.softmax(-1) @ v\n"
    )
    door = open_door(f"{path}:attend", Wishes(true_means="attend"))
    assert [root.told for root in door.roots] == [
        "the mask is inverted: what it should close is open"
    ]


@pytest.mark.parametrize(
    ("closed", "row", "words"),
    [
        ("tril()", "in row 5 of 6 alone", "the causal mask is inverted"),
        ("triu()", "in row 0 of 6 alone", "the causal mask closes a query's own key"),
    ],
)
def test_a_causal_mask_that_leaves_a_row_no_key_is_named(
    tmp_path: Path, closed: str, row: str, words: str
) -> None:
    path = tmp_path / "closed.py"
    path.write_text(
        "import math, torch\n\n\ndef attend(q, k, v):\n"
        "    scores = q @ k.mT / math.sqrt(q.shape[-1])\n"
        f"    closed = torch.ones_like(scores, dtype=torch.bool).{closed}\n"
        "    return scores.masked_fill(closed, -math.inf).softmax(-1) @ v\n"
    )
    failure = findings(open_door(f"{path}:attend"))[0].failure
    assert isinstance(failure, KnownFailure)
    assert failure.cause.name.startswith(words)
    assert row in failure.seen.what


def test_a_missing_causal_mask_is_named() -> None:
    results = findings(open_door(f"{HERE / 'things.py'}:bare", Wishes(causal=True)))
    assert isinstance(results[0].failure, KnownFailure)
    assert results[0].failure.cause.name == "there is no causal mask"


def test_failures_name_flags_and_no_claims() -> None:
    door = open_door(f"{HERE / 'things.py'}:loses_long_keys")
    results = run_checks(door.checks(), on_fail="collect")
    bad = [result for result in results if result.status is Status.FAILED]
    assert bad
    for result in bad:
        assert isinstance(result.failure, DoorFailure)
        text = str(result.failure)
        assert "switched off by" not in text or "switched off by: --" in text


def test_a_known_failure_travels_between_processes() -> None:
    failure = findings(opened("no_scale"))[0].failure
    again = pickle.loads(pickle.dumps(failure))
    assert str(again) == str(failure)
    assert again.cause == failure.cause  # type: ignore[union-attr]


def test_a_class_with_arguments_is_told_how_to_come_in() -> None:
    results = findings(opened("NeedsWidth", file="things_right"))
    assert "write `attend = NeedsWidth(...)` at the top of" in results[0].reason


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("nowhere.py:attend", "no such file"),
        (f"{HERE / 'things.py'}:by_hnad", "did you mean 'by_hand'"),
        (f"{HERE / 'things.py'}", "expected file.py:thing"),
    ],
)
def test_a_missing_file_or_name_is_seen_without_running_it(target: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        look_for(target)


def test_looking_for_a_name_runs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "loud.py"
    path.write_text("raise SystemExit\nif True:\n    attend = 1\n")
    look_for(f"{path}:attend")


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("bare", "correct softmax attention, full; takes no mask"),
        ("square_only", "L = S alone"),
        ("in_blocks_of_64", "lengths that are multiples of 64"),
        ("softmax_in_float32", "float64 is taken, and computed in a narrower type"),
        ("masked", "masks by attn_mask, where True may attend"),
        ("TrueIsMasked", "True is masked (where it was meant to attend: --true-means attend)"),
    ],
)
def test_the_verdict_says_what_it_is(name: str, verdict: str) -> None:
    door = open_door(f"{HERE / 'things.py'}:{name}")
    assert verdict in door.verdict(run_checks(door.findings))
