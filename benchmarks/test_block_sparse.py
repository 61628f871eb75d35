"""An eighth of the blocks on, N = 8192, B = 1, H = 8, D = 64, float32: a fifth of SDPA's time?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from benchmarks.floors import HEADS, WIDTH, threads
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import polyattn
from polyattn.measure.clock import interleave, ratio
from polyattn_plugins.sparse import BlockSparse

LENGTH, BAR = 8192, 0.2
LAYOUTS = {
    "stride": {"stride": 8},
    "bigbird": {"window": 1, "globals": 2, "random": 5},
}


def made(layout: dict[str, int]) -> BlockSparse:
    """The variant, once checked against the definition at a short length."""
    variant = polyattn.create("block_sparse", block=64, layout=layout)
    assert isinstance(variant, BlockSparse)
    q, k, v = (torch.randn(1, HEADS, 700, WIDTH) for _ in range(3))
    torch.testing.assert_close(variant(q, k, v), variant.expected(q, k, v))
    return variant


def judge(benchmark: Any, call: Callable[[], object], full: Callable[[], object]) -> None:
    with threads(1):
        times = interleave({"blocks": call, "full": full}, seconds=20, least=3)
        benchmark.pedantic(call, rounds=1)
    found = ratio(times["blocks"], times["full"], "processor")
    benchmark.extra_info.update(of_full=found, bar=BAR, shape=[1, HEADS, LENGTH, WIDTH])
    assert found <= BAR, f"{found:.3f} of the time of full attention, expected at most {BAR}"


@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_forward(benchmark: Any, layout: str) -> None:
    variant = made(LAYOUTS[layout])
    assert abs(variant.density(LENGTH, LENGTH) - 1 / 8) < 0.005
    q, k, v = (torch.randn(1, HEADS, LENGTH, WIDTH) for _ in range(3))
    judge(benchmark, lambda: variant(q, k, v), lambda: scaled_dot_product_attention(q, k, v))


@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_forward_and_backward(benchmark: Any, layout: str) -> None:
    variant = made(LAYOUTS[layout])
    inputs = [torch.randn(1, HEADS, LENGTH, WIDTH, requires_grad=True) for _ in range(3)]
    grad = torch.randn(1, HEADS, LENGTH, WIDTH)

    def trained(attention: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        return torch.autograd.grad(attention(*inputs), inputs, grad)

    judge(benchmark, lambda: trained(variant), lambda: trained(scaled_dot_product_attention))
