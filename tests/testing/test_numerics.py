"""The comparison and the definition that everything else leans on."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from polyattn.testing.results import Mismatch
from polyattn.testing.tools.loops import elementwise_attention, loop_attention
from polyattn.testing.tools.numerics import compare, same_tolerance, value_tolerance

ONES = torch.ones(2, 3, dtype=torch.float64)


@pytest.mark.parametrize("value", [math.nan, math.inf, 1.1])
def test_a_wrong_element_is_found_with_its_place(value: float) -> None:
    got = ONES.clone()
    got[1, 2] = value
    with pytest.raises(Mismatch) as caught:
        compare("x", got, ONES, tolerance=1e-3)
    assert caught.value.seen.index == (1, 2)


def test_nan_is_never_equal_to_nan() -> None:
    with pytest.raises(Mismatch, match="compared with is NaN"):
        compare("x", ONES * math.nan, ONES * math.nan, tolerance=1.0)


@pytest.mark.parametrize("got", [None, (ONES,), ONES[:1], ONES.mT])
def test_what_is_no_such_tensor_is_found(got: object) -> None:
    with pytest.raises(Mismatch, match="expected"):
        compare("x", got, ONES, tolerance=1.0)


def test_tolerances_follow_the_rules() -> None:
    assert value_tolerance(ONES, None, torch.float64) == 1e-10
    u = torch.finfo(torch.float32).eps
    plain = (ONES + 4 * u).float()
    assert value_tolerance(ONES, plain, torch.float32) == pytest.approx(3 * 4 * u + 2 * u)
    assert same_tolerance(torch.float32, 2.0) == 32 * u


@pytest.mark.parametrize("form", [loop_attention, elementwise_attention])
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_the_definitions_agree_with_torch(form, kv_heads: int) -> None:  # type: ignore[no-untyped-def]
    generator = torch.Generator().manual_seed(0)

    def draw(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64)

    q, k, v = draw(2, 4, 5, 3), draw(2, kv_heads, 7, 3), draw(2, kv_heads, 7, 2)
    keep, bias = draw(2, 4, 5, 7) > -0.5, draw(2, 1, 5, 7)
    bias[0, 0, 1, 2] = -math.inf
    keep[1, 2, 3] = False
    added = bias.expand(2, 4, 5, 7).masked_fill(~keep, -math.inf)
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=added, enable_gqa=True, scale=0.7)
    torch.testing.assert_close(
        form(q, k, v, scale=0.7, keep=keep, bias=bias), expected, rtol=0, atol=1e-13
    )


def test_gradients_through_empty_rows_are_zero() -> None:
    q, k, v = (torch.ones(1, 1, 3, 2, dtype=torch.float64, requires_grad=True) for _ in range(3))
    keep = torch.tensor([[True, False, True], [False] * 3, [True] * 3])
    elementwise_attention(q, k, v, scale=1.0, keep=keep).sum().backward()
    for x in (q, k, v):
        assert x.grad is not None
        assert x.grad.isfinite().all()
    assert q.grad is not None
    assert (q.grad[0, 0, 1] == 0).all()
