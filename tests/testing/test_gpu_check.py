"""``make gpu-check`` where there is no GPU: it says so, and never that it was run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.gpu import check


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    (tmp_path / "polyattn-0.1.0-py3-none-any.whl").write_bytes(b"")
    return tmp_path


def test_without_a_gpu_it_says_so_and_writes_nothing(
    wheels: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    out = wheels / "out.json"
    assert check.main(["--wheels", str(wheels), "--out", str(out)]) == 2
    told = capsys.readouterr()
    assert told.err.startswith("gpu-check: nothing was checked: torch ")
    assert told.err.count("\n") == 1
    assert not out.exists()


def test_without_wheels_it_says_how_to_get_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check.main(["--wheels", str(tmp_path / "none")]) == 2
    assert "`make gpu-check-wheels` builds it" in capsys.readouterr().err


def test_names_are_checked_in_their_share_of_the_time_and_a_wrong_one_stops_nothing() -> None:
    first, second = check.reports_of(["nothing_of_the_kind", "core/alibi"], "cpu", 120.0)
    assert not first["good"]
    assert "unknown name" in first["problem"]
    assert second["good"]
    assert len(second["results"]) > 5
