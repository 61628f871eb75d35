"""Documents of 512 tokens in 8,192: what do they cost, beside the same mask as a tensor?"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from benchmarks.floors import HEADS, WIDTH, threads
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import polyattn
from polyattn import Mask
from polyattn.measure.clock import interleave, ratio

BAR = 0.15
LENGTH, DOCUMENT = 8192, 512


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "training"])
def test_packed_documents_cost_their_own_pairs(benchmark: Any, backward: bool) -> None:
    q, k, v = (torch.randn(1, HEADS, LENGTH, WIDTH, requires_grad=backward) for _ in range(3))
    mask = Mask.documents([DOCUMENT] * (LENGTH // DOCUMENT)) & Mask.causal()
    keep = mask.keep(LENGTH, LENGTH)
    softmax = polyattn.create("softmax")

    def trained(out: Tensor) -> None:
        if backward:
            torch.autograd.grad(out.sum(), (q, k, v))

    def packed() -> None:
        trained(softmax(q, k, v, mask))

    def as_a_tensor() -> None:
        trained(scaled_dot_product_attention(q, k, v, attn_mask=keep))

    with threads(1):
        times = interleave({"packed": packed, "a tensor": as_a_tensor}, seconds=20.0)
        found = ratio(times["packed"], times["a tensor"], "processor")
        benchmark.extra_info.update(bar=BAR, ratio=found)
        benchmark.pedantic(packed, rounds=3)
    assert found <= BAR, f"{found:.3f} of the dense masked call, expected at most {BAR}"
