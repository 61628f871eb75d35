"""What a checked call costs beyond the bare function, at sizes where that is all there is."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import polyattn

LIMIT_SMALL = 1.6
LIMIT_BEYOND_SPREAD = 0.01


def turns(functions: list[Callable[[], Tensor]], repeats: int, calls: int) -> list[list[float]]:
    """Processor seconds of one thread per call, the functions taking turns within each repeat."""
    times: list[list[float]] = [[] for _ in functions]
    for repeat in range(repeats):
        order = range(len(functions)) if repeat % 2 else reversed(range(len(functions)))
        for n in order:
            start = time.thread_time_ns()
            for _ in range(calls):
                functions[n]()
            times[n].append((time.thread_time_ns() - start) / calls / 1e9)
    return times


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", ["sdpa", "softmax"])
def test_a_small_call(name: str, benchmark: BenchmarkFixture) -> None:
    q = torch.randn(1, 4, 16, 16)
    variant = polyattn.create(name)
    with torch.no_grad():
        bare, ours = turns(
            [lambda: scaled_dot_product_attention(q, q, q), lambda: variant(q, q, q)], 60, 300
        )
        benchmark.pedantic(lambda: variant(q, q, q), rounds=20, iterations=200)
    ratio = min(ours) / min(bare)
    benchmark.extra_info.update({"ratio": ratio, "limit": LIMIT_SMALL, "bare_s": min(bare)})
    assert ratio <= LIMIT_SMALL


@pytest.mark.parametrize("length", [1024, 2048])
@pytest.mark.parametrize("name", ["sdpa", "softmax"])
def test_a_long_call_is_within_the_spread_of_the_bare_one(
    name: str, length: int, benchmark: BenchmarkFixture
) -> None:
    q = torch.randn(1, 8, length, 64)
    variant, mask = polyattn.create(name), polyattn.Mask.causal()

    def bare() -> Tensor:
        return scaled_dot_product_attention(q, q, q, is_causal=True)

    with torch.no_grad():
        repeats = 40 * 2048 // length
        first, second, ours = turns([bare, bare, lambda: variant(q, q, q, mask)], repeats, 1)
        benchmark.pedantic(lambda: variant(q, q, q, mask), rounds=5)
    spread = max(min(first), min(second)) / min(*first, *second)
    ratio = min(ours) / min(*first, *second)
    benchmark.extra_info.update({"ratio": ratio, "spread": spread})
    assert ratio <= spread + LIMIT_BEYOND_SPREAD
