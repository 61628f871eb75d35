"""stabilised_softmax against the layers of transformers whose mechanisms it has."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

import polyattn
from polyattn import Mask, Sizes

gemma2 = pytest.importorskip("transformers.models.gemma2.modeling_gemma2")
gpt_oss = pytest.importorskip("transformers.models.gpt_oss.modeling_gpt_oss")

B, H, HKV, L, D = 2, 4, 2, 9, 8
SIZES = Sizes(H, D, HKV)
SCALE = 0.4


def qkv() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return tuple(torch.randn(B, heads, L, D, generator=generator) for heads in (H, HKV, HKV))


def masks() -> tuple[Mask, Tensor]:
    """Causal with padding at the end, here and as transformers adds it to the logits."""
    mask = Mask.causal() & Mask.lengths([L, 5])
    keep = mask.keep(L, L, B, H)
    assert keep is not None
    return mask, torch.where(keep, 0.0, torch.finfo(torch.float32).min)


def test_the_cap_is_that_of_gemma_2() -> None:
    (q, k, v), (mask, added) = qkv(), masks()
    variant = polyattn.create("stabilised_softmax", SIZES, softcap=0.9, scale=SCALE)
    module = SimpleNamespace(num_key_value_groups=H // HKV, training=False, head_dim=D)
    out, _ = gemma2.eager_attention_forward(module, q, k, v, added, scaling=SCALE, softcap=0.9)
    torch.testing.assert_close(variant(q, k, v, mask), out.transpose(1, 2), rtol=0, atol=1e-5)


def test_the_sink_is_that_of_gpt_oss() -> None:
    (q, k, v), (mask, added) = qkv(), masks()
    variant = polyattn.create("stabilised_softmax", SIZES, sink=True, scale=SCALE)
    sinks = torch.tensor([-3.0, 0.0, 0.5, 2.0])
    with torch.no_grad():
        variant.get_parameter("sink").copy_(sinks)
    module = SimpleNamespace(num_key_value_groups=H // HKV, training=False, sinks=sinks)
    out, _ = gpt_oss.eager_attention_forward(module, q, k, v, added, scaling=SCALE)
    torch.testing.assert_close(variant(q, k, v, mask), out.transpose(1, 2), rtol=0, atol=1e-5)
