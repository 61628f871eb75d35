"""`linear`, causal, B = 1, H = 8, D = 64, float32: what does it cost, and how does it grow?"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from benchmarks.floors import BACKWARD, HEADS, WIDTH, judge, threads
from torch import Tensor

import polyattn
from polyattn import Mask
from polyattn.measure.clock import interleave, ratio
from polyattn.measure.memory import peak_bytes

LENGTH, LONG = 16384, 65536
KEYS_BESIDE = 256


def attention() -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """The causal form, once checked against the definition at a short length."""
    variant, mask = polyattn.create("linear"), Mask.causal()
    q, k, v = made(700)
    torch.testing.assert_close(variant(q, k, v, mask), variant.expected(q, k, v, mask))
    return lambda q, k, v: variant(q, k, v, mask)


def made(length: int, grad: bool = False) -> list[Tensor]:
    return [torch.randn(1, HEADS, length, WIDTH, requires_grad=grad) for _ in range(3)]


def operations(length: int) -> int:
    """4 H N D Dv: a key and its value enter the state, a query reads it."""
    return 4 * HEADS * length * WIDTH * WIDTH


def test_forward(benchmark: Any) -> None:
    run, inputs = attention(), made(LENGTH)
    benchmark.extra_info["shape"] = [1, HEADS, LENGTH, WIDTH]
    judge(benchmark, lambda: run(*inputs), operations(LENGTH), 8.0)


def test_forward_and_backward(benchmark: Any) -> None:
    """No bar was set beforehand: this one keeps what was reached."""
    run, inputs, grad = attention(), made(4096, grad=True), torch.randn(1, HEADS, 4096, WIDTH)
    benchmark.extra_info["shape"] = [1, HEADS, 4096, WIDTH]
    all_of_it = BACKWARD * operations(4096)
    judge(benchmark, lambda: torch.autograd.grad(run(*inputs), inputs, grad), all_of_it, 8.0)


def test_memory(benchmark: Any) -> None:
    run, inputs = attention(), made(LENGTH)
    with torch.no_grad():
        benchmark.pedantic(lambda: run(*inputs), rounds=1)
        peak = peak_bytes(lambda: run(*inputs)) / inputs[0].nbytes
    benchmark.extra_info.update(peak_over_q=peak, bar=3.0)
    assert peak <= 3.0


def test_time_grows_with_the_length(benchmark: Any) -> None:
    """The exponent of the growth, beside that of a plain copy, which must be near 1 itself."""
    run, short, long = attention(), made(LENGTH), made(LONG)
    into = {len(x): x for x in (torch.empty(HEADS * n * WIDTH * 4) for n in (LENGTH, LONG))}

    def copied(x: Tensor) -> Callable[[], object]:
        whole = torch.cat([x.flatten()] * 4)
        return lambda: into[len(whole)].copy_(whole)

    calls = {"short": lambda: run(*short), "long": lambda: run(*long)}
    with threads(1), torch.no_grad():
        copies = {"copy short": copied(short[0]), "copy long": copied(long[0])}
        times = interleave({**calls, **copies}, seconds=20, least=5)
        benchmark.pedantic(calls["long"], rounds=1)

    def exponent(name: str) -> float:
        grown = ratio(times[name + "long"], times[name + "short"], "processor")
        return math.log(grown) / math.log(LONG / LENGTH)

    found, plain = exponent(""), exponent("copy ")
    benchmark.extra_info.update(exponent=found, exponent_of_a_copy=plain, bar=1.1)
    if not 0.9 <= plain <= 1.1:
        pytest.skip(f"void: a copy itself grows with an exponent of {plain:.2f}")
    assert found <= 1.1
