"""The gate before every timing: right variants pass, planted faults do not."""

import itertools

import pytest
from tests.measure import planted

import polyattn
from polyattn.measure import proof
from polyattn.measure.proof import prove, random_tensors, rows_stand_alone, sample_blocks


def proven(variant, length):
    return prove(variant, random_tensors(variant, 2, 16, length, seed=0))


@pytest.mark.parametrize(("length", "rows"), [(1, 1), (100, 100), (1024, 1024), (1600, 256)])
def test_a_right_variant_passes(length, rows):
    found = proven(planted.Right(), length)
    assert (found.passed, found.reason) == (True, "")
    assert (found.length, found.rows) == (length, rows)
    assert set(found.errors) == {"output", "q", "k", "v"}


@pytest.mark.parametrize(
    ("fault", "length", "said"),
    [
        (planted.WrongScale, 64, "the output differs"),
        (planted.WrongScale, 1600, "the output differs"),
        (planted.WrongFarOut, 1600, "the output differs"),
        (planted.WrongGradient, 64, "the gradient of v differs"),
        (planted.WrongGradient, 1600, "the gradient of v differs"),
        (planted.NotANumber, 64, "the output differs from the definition by nan"),
    ],
)
def test_a_planted_fault_is_caught(fault, length, said):
    found = proven(fault(), length)
    assert not found.passed
    assert said in found.reason
    assert f"length {length}" in found.reason
    assert "\n" not in found.reason


def test_a_fault_far_out_is_not_seen_near_by():
    # The other half of the test above: what is proven short is not proven long.
    assert proven(planted.WrongFarOut(), 1024).passed


def test_what_a_variant_raises_is_raised():
    with pytest.raises(RuntimeError, match="planted"):
        proven(planted.Raises(), 64)


def test_rows_that_do_not_stand_alone_are_compared_whole_at_a_shorter_length(monkeypatch):
    variant = planted.Whole()
    tensors = random_tensors(variant, 2, 16, 1600, seed=0)
    assert rows_stand_alone(planted.Right(), tensors)
    assert not rows_stand_alone(variant, tensors)
    monkeypatch.setattr(proof, "_MEMORY", 40 * 2**20)
    found = prove(variant, tensors)
    assert found.passed
    assert found.rows == found.length
    # At 2 heads a float64 map of this length is a tenth of the memory or so.
    assert 320 < found.length < 1000


def test_sampled_rows_hold_the_first_and_the_last():
    blocks = sample_blocks(5000, seed=3)
    assert blocks[0] == (0, 32)
    assert blocks[-1] == (4968, 5000)
    assert sum(end - start for start, end in blocks) == 256
    assert all(first[1] <= second[0] for first, second in itertools.pairwise(blocks))
    assert sample_blocks(5000, seed=4) != blocks


@pytest.mark.parametrize("name", ["softmax", "local_window", "linear", "gated_linear"])
def test_the_built_in_causal_variants_pass_at_a_sampled_length(name):
    variant = polyattn.create(name, polyattn.Sizes(2, 16, max_length=1500))
    found = proven(variant, 1500)
    assert found.passed, found.reason
    assert found.rows == 256
