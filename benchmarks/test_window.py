"""A window of 256 keys, causal, B = 1, H = 8, D = 64, float32: what does it cost?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from benchmarks.floors import (
    BACKWARD,
    HEADS,
    WIDTH,
    judge,
    many,
    pairs_in_window,
    softmax_operations,
    threads,
)
from torch import Tensor

import polyattn
from polyattn import Mask
from polyattn.measure.clock import interleave, ratio
from polyattn.measure.memory import peak_bytes

KEYS = 256
MASKS = {"local_window": None, "softmax": Mask.causal() & Mask.window(KEYS - 1, 0)}


def attention(name: str) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """The window by option or by mask, once checked against the definition at a short length."""
    options = {"left": KEYS - 1, "right": 0} if name == "local_window" else {}
    variant, mask = polyattn.create(name, **options), MASKS[name]
    q, k, v = made(700)
    torch.testing.assert_close(variant(q, k, v, mask), variant.expected(q, k, v, mask))
    return lambda q, k, v: variant(q, k, v, mask)


def made(length: int, grad: bool = False) -> list[Tensor]:
    return [torch.randn(1, HEADS, length, WIDTH, requires_grad=grad) for _ in range(3)]


@pytest.mark.parametrize("name", list(MASKS))
def test_forward(benchmark: Any, name: str) -> None:
    run, inputs = attention(name), made(16384)
    benchmark.extra_info["shape"] = [1, HEADS, 16384, WIDTH]
    judge(benchmark, lambda: run(*inputs), softmax_operations(pairs_in_window(16384, KEYS)), 2.5)


@pytest.mark.parametrize("name", list(MASKS))
def test_forward_and_backward(benchmark: Any, name: str) -> None:
    run, inputs = attention(name), made(4096, grad=True)
    grad = torch.randn(1, HEADS, 4096, WIDTH)
    operations = BACKWARD * softmax_operations(pairs_in_window(4096, KEYS))
    benchmark.extra_info["shape"] = [1, HEADS, 4096, WIDTH]
    judge(benchmark, lambda: torch.autograd.grad(run(*inputs), inputs, grad), operations, 4.0)


@pytest.mark.parametrize("name", list(MASKS))
def test_memory(benchmark: Any, name: str) -> None:
    run, inputs = attention(name), made(16384)
    benchmark.pedantic(lambda: run(*inputs), rounds=1)
    peak = peak_bytes(lambda: run(*inputs)) / inputs[0].nbytes
    benchmark.extra_info.update(peak_over_q=peak, bar=2.5)
    assert peak <= 2.5


def test_time_per_token_does_not_grow(benchmark: Any) -> None:
    run = attention("local_window")
    short, long = made(16384), made(65536)
    # Four calls of a quarter: samples of one duration, so that neither minimum has it easier.
    with threads(1):
        four = many(lambda: run(*short), 4)
        times = interleave({"short": four, "long": lambda: run(*long)}, seconds=20, least=6)
        benchmark.pedantic(lambda: run(*long), rounds=1)
    found = ratio(times["long"], times["short"], "processor")
    benchmark.extra_info.update(ratio_per_token=found, bar=1.1)
    assert found <= 1.1
