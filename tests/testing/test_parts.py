"""The framework's own parts pass their checks, and so do strangers' that are written correctly."""

from __future__ import annotations

import pytest
from tests.testing import broken_masks, broken_positions, broken_states
from tests.testing.test_cli_check import polyattn

from polyattn.cli.check_session import everything
from polyattn.errors import UnknownName
from polyattn.mask import Mask
from polyattn.testing import (
    PARTS_OF_THE_FRAMEWORK,
    MaskSubject,
    Result,
    checks_of_part,
    mask_checks,
    run_checks,
)
from polyattn.testing.planned import Check
from polyattn.testing.process.worker import Suite


def failures(planned: list[Check]) -> list[Result]:
    results = run_checks(planned, on_fail="collect", extended=True)
    return [result for result in results if not result.status.good]


@pytest.mark.parametrize("name", PARTS_OF_THE_FRAMEWORK)
def test_a_part_of_the_framework_passes_everything(name: str) -> None:
    failed = failures(checks_of_part(name))
    assert not failed, "\n".join(f"{result.id}: {result.reason}" for result in failed)


@pytest.mark.parametrize("kind", broken_positions.RIGHT)
def test_a_correct_position_module_passes_everything(kind: type) -> None:
    failed = failures(list(broken_positions.checks_of_planted(kind)))
    assert not failed, "\n".join(f"{result.id}: {result.reason}" for result in failed)


def test_a_stranger_s_state_passes_everything() -> None:
    failed = failures(list(broken_states.checks_of_planted(broken_states.Sums)))
    assert not failed, "\n".join(f"{result.id}: {result.reason}" for result in failed)


def test_a_class_of_masks_of_its_own_passes_everything() -> None:
    failed = failures(list(broken_masks.checks_of_planted(broken_masks.Right)))
    assert not failed, "\n".join(f"{result.id}: {result.reason}" for result in failed)


@pytest.mark.parametrize("name", PARTS_OF_THE_FRAMEWORK)
def test_ids_are_unique(name: str) -> None:
    ids = [check.id for check in checks_of_part(name)]
    assert len(set(ids)) == len(ids)


def test_the_seeds_draw_every_kind_of_part() -> None:
    """What is drawn at random is drawn often enough to meet everything."""
    from polyattn.testing.subjects.mask_meanings import KINDS, drawn

    met = {
        meaning.text.partition(",")[0].partition(" ")[0]
        for queries, keys in ((5, 5), (3, 7), (1, 6), (4, 9), (6, 2))
        for seed in range(8)
        for meaning in drawn(seed, queries, keys)
    }
    texts = {draw(5, 5, 0).text.partition(",")[0].partition(" ")[0] for draw in KINDS.values()}
    assert met == texts
    assert list(mask_checks(MaskSubject("core/mask", Mask)))


def test_an_unknown_part_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UnknownName, match=r"'core/rop', did you mean 'core/rope'"):
        checks_of_part("core/rop")


def test_a_part_is_checked_by_its_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert polyattn(monkeypatch, "check", "core/alibi") == 0
    assert "passed       check_alibi_slopes (16)" in capsys.readouterr().out
    assert polyattn(monkeypatch, "check", "core/albi") == 2
    assert "did you mean 'core/alibi'?" in capsys.readouterr().err


def test_all_means_the_parts_too() -> None:
    with Suite() as suite:
        assert set(PARTS_OF_THE_FRAMEWORK) < set(everything(suite))
