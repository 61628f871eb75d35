"""A device that is asked for and is not here is refused, before any check: never by torch."""

from __future__ import annotations

import pytest
import torch
from tests.testing.broken_maps import PlainGate

from polyattn.errors import ConfigError, Unavailable
from polyattn.testing import check_class, check_variant
from polyattn.testing.tools.devices import CPU, place_of


@pytest.fixture(autouse=True)
def no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.parametrize("on_fail", ["raise", "collect"])
def test_it_is_told_what_was_asked_what_is_here_and_the_way_out(on_fail: str) -> None:
    for check in (
        lambda: check_variant("se", device="cuda", on_fail=on_fail),  # type: ignore[arg-type]
        lambda: check_variant("core/rope", device="cuda", on_fail=on_fail),  # type: ignore[arg-type]
        lambda: check_class(PlainGate, device="cuda", on_fail=on_fail),  # type: ignore[arg-type]
    ):
        with pytest.raises(Unavailable) as raised:
            check()
        told = str(raised.value)
        assert told.startswith("device = 'cuda': there is none here (torch ")
        assert "there is 'cpu'; leave device out" in told


@pytest.mark.parametrize(
    ("built_for", "words"), [(None, "is built without CUDA"), ("13.0", "finds no CUDA device")]
)
def test_the_reason_is_the_build_or_the_machine(
    monkeypatch: pytest.MonkeyPatch, built_for: str | None, words: str
) -> None:
    monkeypatch.setattr(torch.version, "cuda", built_for)
    with pytest.raises(Unavailable, match=words):
        place_of("cuda")


def test_what_is_here_is_given_and_what_is_unknown_is_a_wrong_question() -> None:
    assert place_of("cpu") == CPU
    with pytest.raises(ConfigError, match="expected 'cpu' or 'cuda'"):
        place_of("tpu")
