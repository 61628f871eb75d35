"""Every variant under autocast, and asked for second derivatives: right, or refused in one line."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import polyattn
from polyattn import Mask, Sizes
from polyattn.errors import Unsupported

NAMES = ("dense", "sdpa", "flash", "softmax", "local_window", "windowed", "linear", "gated_linear")


def case(name: str, dtype: torch.dtype = torch.float32) -> tuple[Any, ...]:
    variant = polyattn.create(name)
    assert isinstance(variant, polyattn.SequenceAttention)
    generator = torch.Generator().manual_seed(0)
    q, k, v, gate = (
        torch.randn(2, 2, 24, 8, generator=generator).to(dtype).requires_grad_() for _ in range(4)
    )
    mask = Mask.causal() & Mask.window(5, 0) if name == "windowed" else Mask.causal()
    return variant, (q, k, v), mask, {"gate": gate} if variant.side_inputs else {}


@pytest.mark.parametrize("name", NAMES)
def test_autocast_leaves_a_variant_as_right_as_its_inputs(name: str) -> None:
    variant, x, mask, inputs = case(name)
    expected = variant(*x, mask, inputs)
    with torch.autocast("cpu", torch.bfloat16):
        found = variant(*x, mask, inputs)
        state = None
        if variant.claims.state != "none":
            state = variant.new_state(2, Sizes(2, 8))
            for t in range(24):
                piece = [y.detach()[:, :, t : t + 1] for y in x]
                sides = {n: y.detach()[:, :, t : t + 1] for n, y in inputs.items()}
                out, state = variant.extend(*piece, state, None, sides)
                assert (out.float() - expected[:, :, t : t + 1]).abs().max() < 0.05
    assert (found.float() - expected).abs().max() < 0.05
    gradients = torch.autograd.grad(found.float().square().sum(), x)
    right = torch.autograd.grad(expected.square().sum(), x)
    for a, b in zip(gradients, right, strict=True):
        assert (a - b).abs().max() < 0.1 * b.abs().max()


@pytest.mark.parametrize("name", ["local_window", "windowed", "linear", "gated_linear"])
def test_second_derivatives_are_refused_in_one_line(name: str) -> None:
    variant, x, mask, inputs = case(name, torch.float64)
    out = variant(*x, mask, inputs)
    (first,) = torch.autograd.grad(out.square().sum(), x[0], create_graph=True)
    with pytest.raises(Unsupported, match="first derivatives only"):
        torch.autograd.grad(first.square().sum(), x[0])


def test_second_derivatives_of_dense_are_right() -> None:
    variant, x, mask, _ = case("dense", torch.float64)
    small = tuple(y.detach()[:1, :1, :3, :2].requires_grad_() for y in x)
    assert torch.autograd.gradgradcheck(lambda *y: variant(*y, mask), small)
