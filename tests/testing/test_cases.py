"""What a failure says it was given can be made again: the very numbers, by a line of Python."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from polyattn.capabilities import InputSize
from polyattn.mask import Mask
from polyattn.testing.subjects.networks import (
    Manner,
    ModelSubject,
    ModuleSubject,
    Network,
    described,
)
from polyattn.testing.tools.cases import RECTANGULAR, SQUARE, Sample, draw
from polyattn.testing.tools.recipes import recipe

GROUPED = SQUARE.of(heads=4, kv_heads=2)
SIDES = {"gate": InputSize(heads="kv_heads", width=1), "beta": InputSize(heads="heads", width=3)}


def made(line: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(line, names)
    return names


def equal(sample: Sample, line: str) -> bool:
    names = made(line)
    return all(
        names[name].dtype == x.dtype and torch.equal(names[name], x)
        for name, x in sample.leaves().items()
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("std", [1.2, 0.5])
def test_the_line_makes_the_very_numbers(dtype: torch.dtype, std: float) -> None:
    for seed, shape in enumerate((RECTANGULAR, SQUARE, GROUPED)):
        sample = draw(shape, dtype=dtype, side_inputs={}, mask=Mask.full(), seed=seed, std=std)
        assert equal(sample, recipe(sample.describe()))
        assert equal(sample, recipe(f"{sample.describe()}, chunks of 3"))
        assert not equal(sample.each(lambda x: x + 1), recipe(sample.describe()))


def test_side_inputs_are_made_as_well() -> None:
    sample = draw(GROUPED, dtype=torch.float32, side_inputs=SIDES, mask=Mask.full(), seed=2)
    line = recipe(sample.describe())
    assert "q, k, v, gate, beta = drawn(" in line
    assert equal(sample, line)


def test_a_mask_is_left_to_be_added() -> None:
    sample = draw(SQUARE, dtype=torch.float64, side_inputs={}, mask=Mask.causal())
    line = recipe(sample.describe())
    assert line.endswith("  # mask causal")
    assert equal(sample, line)
    assert equal(sample, recipe(sample.masked(Mask.full()).describe()))


def test_what_is_rounded_once_is_as_if_drawn_so_and_what_is_changed_has_no_line() -> None:
    wide = draw(SQUARE, dtype=torch.float64, side_inputs={}, mask=Mask.full())
    narrow = wide.to(torch.float16)
    assert equal(narrow, recipe(narrow.describe()))
    for changed in (
        narrow.to(torch.float32),
        wide.rows(slice(1)),
        wide.keys(slice(0, 5)),
        wide.positions(slice(0, 5)),
        wide.having(v=wide.v * 2),
    ):
        assert "made from seed 0" in changed.describe()
        assert recipe(changed.describe()) == ""


@pytest.mark.parametrize(
    "subject",
    [
        ModuleSubject("it", lambda: len, Manner(), 16),
        ModelSubject("it", lambda: len, Manner(), 23),
    ],
)
def test_inputs_of_modules_and_models_are_made_again(subject: Network) -> None:
    subject.dtype = torch.float64
    for seed in (0, 2):
        x = subject.draw(2, 6, seed=seed)
        keep = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
        for given, more in (
            (described(x), ""),
            (described(x, keep=keep), "real positions [6, 4]"),
            (f"{described(x)}, others 100 times as large", "others 100 times as large"),
        ):
            line = recipe(given)
            assert line.partition("  # ")[2] == more
            again = made(line)["x" if x.is_floating_point() else "ids"]
            assert again.dtype == x.dtype
            assert torch.equal(again, x)


def test_changed_inputs_of_modules_have_no_line() -> None:
    subject = ModuleSubject("it", lambda: len, Manner(), 16)
    x = subject.draw(2, 6)
    assert recipe(described(x.requires_grad_()))
    for changed in (x * 2, x[:1], x.double(), subject.changed(x, slice(2, 3)), x.detach().clone()):
        assert recipe(described(changed)) == ""
    with torch.no_grad():
        x[0] = 0.0
    assert recipe(described(x)) == ""
    with torch.inference_mode():
        assert recipe(described(subject.draw(2, 6))) == ""


def test_other_texts_have_no_line() -> None:
    for text in ("", "x (2, 6, 16) float64", "sizes Sizes(heads=2)", "ids (2, 12)"):
        assert recipe(text) == ""
