"""The shared places where a masked row turns into NaN if written naively."""

from __future__ import annotations

import pytest
import torch

from polyattn import kit


def test_masked_softmax_is_softmax_and_zeros_where_nothing_is_visible() -> None:
    logits = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    keep = torch.tensor([[1, 1, 0, 1, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]], dtype=torch.bool)
    weights = kit.masked_softmax(logits, keep)
    torch.testing.assert_close(weights[0, keep[0]], logits[0, keep[0]].softmax(-1))
    torch.testing.assert_close(weights[2], logits[2].softmax(-1))
    assert not weights[1].any()
    assert not weights[0, ~keep[0]].any()
    (gradient,) = torch.autograd.grad(weights, logits, torch.randn(3, 5, dtype=torch.float64))
    assert torch.isfinite(gradient).all()
    assert not gradient[1].any()
    assert gradient[2].any()


def test_minus_infinity_closes_like_a_mask() -> None:
    logits = torch.tensor([[0.0, -torch.inf], [-torch.inf, -torch.inf]], requires_grad=True)
    weights = kit.masked_softmax(logits)
    assert weights.tolist() == [[1.0, 0.0], [0.0, 0.0]]
    (gradient,) = torch.autograd.grad(weights.square().sum(), logits)
    assert torch.isfinite(gradient).all()


def test_masked_softmax_passes_gradcheck() -> None:
    logits = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    keep = torch.tensor([[1, 0, 1, 1], [0, 0, 0, 0]], dtype=torch.bool)
    assert torch.autograd.gradcheck(lambda x: kit.masked_softmax(x, keep), logits)


def test_safe_divide_is_exact_and_zero_over_zero_is_zero() -> None:
    top = torch.tensor([1.0, 0.0, 3.0], requires_grad=True)
    bottom = torch.tensor([3.0, 0.0, 1e-10], requires_grad=True)
    out = kit.safe_divide(top, bottom)
    assert out[0] == 1 / torch.tensor(3.0)
    assert out[1] == 0
    gradients = torch.autograd.grad(out.sum(), (top, bottom))
    assert all(torch.isfinite(g).all() for g in gradients)


def test_merging_by_lse_is_attention_over_the_union() -> None:
    q, k, v = (torch.randn(2, n, 4, dtype=torch.float64) for n in (3, 7, 7))

    def part(start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        logits = q @ k[:, start:stop].mT
        return logits.softmax(-1) @ v[:, start:stop], logits.logsumexp(-1)

    blind = torch.full((2, 3), -torch.inf, dtype=torch.float64)
    merged, lse = kit.merge_by_lse([part(0, 2), (torch.zeros(2, 3, 4), blind), part(2, 7)])
    expected, expected_lse = part(0, 7)
    torch.testing.assert_close(merged, expected)
    torch.testing.assert_close(lse, expected_lse)
    empty = torch.full((2, 3), -torch.inf, dtype=torch.float64, requires_grad=True)
    _, nothing = kit.merge_by_lse([(torch.zeros(2, 3, 4), empty)])
    assert (nothing == -torch.inf).all()
    (gradient,) = torch.autograd.grad(nothing.exp().sum(), empty)
    assert not gradient.any()
    with pytest.raises(ValueError, match="at least one"):
        kit.merge_by_lse([])


def test_key_heads_serve_neighbours() -> None:
    x = torch.arange(2.0).reshape(1, 2, 1, 1)
    assert kit.repeat_heads(x, 6).flatten().tolist() == [0, 0, 0, 1, 1, 1]
