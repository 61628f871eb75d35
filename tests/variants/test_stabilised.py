"""stabilised_softmax: its formula, each switch alone, and rows without a variance."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

import polyattn
from polyattn import Mask, Sizes
from polyattn.errors import ConfigError

B, H, HKV, L, S, D, DV = 2, 4, 2, 5, 7, 8, 6
SIZES = Sizes(H, D, HKV, DV)
SWITCHES = [
    {"normalise": normalise, "softcap": softcap, "sink": sink}
    for normalise, softcap, sink in itertools.product((False, True), (None, 0.8), (False, True))
]


def made(**options: object) -> polyattn.SequenceAttention:
    torch.manual_seed(0)
    variant = polyattn.create("stabilised_softmax", SIZES, **options)
    assert isinstance(variant, polyattn.SequenceAttention)
    variant.double()
    with torch.no_grad():
        for p in variant.parameters():
            p.add_(torch.randn_like(p))
    return variant


def qkv() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    sizes = ((B, H, L, D), (B, HKV, S, D), (B, HKV, S, DV))
    return [
        torch.randn(size, generator=generator, dtype=torch.float64).requires_grad_()
        for size in sizes
    ]


def by_loops(variant: polyattn.SequenceAttention, x: list[Tensor]) -> Tensor:
    """The formula, one number at a time, where query i sees the keys up to its own."""
    q, k, v = (t.detach() for t in x)
    p, config = {n: x.detach() for n, x in variant.named_parameters()}, variant.config
    out = torch.zeros(B, H, L, DV, dtype=q.dtype)
    for b, h, i in torch.cartesian_prod(*(torch.arange(n) for n in (B, H, L))).tolist():
        g, seen = h // (H // HKV), range(i + S - L + 1)
        row = [float(q[b, h, i] @ k[b, g, j]) for j in seen]
        if config.normalise:
            mean = sum(row) / len(row)
            variance = sum((x - mean) ** 2 for x in row) / len(row)
            row = [(x - mean) / math.sqrt(variance + 1e-5) for x in row]
        row = [math.exp(float(p["log_scale"][h])) * x for x in row]
        if config.softcap:
            row = [config.softcap * math.tanh(x / config.softcap) for x in row]
        odds = [math.exp(x) for x in row]
        total = sum(odds) + (math.exp(float(p["sink"][h])) if config.sink else 0)
        for j, odd in zip(seen, odds, strict=True):
            out[b, h, i] += odd / total * v[b, g, j]
    return out


@pytest.mark.parametrize("options", SWITCHES, ids=str)
def test_it_is_the_formula(options: dict[str, object]) -> None:
    variant, x = made(**options), qkv()
    expected = by_loops(variant, x)
    for found in (variant(*x, Mask.causal()), variant.expected(*x, Mask.causal())):
        torch.testing.assert_close(found.detach(), expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("options", SWITCHES, ids=str)
def test_gradients_reach_every_input_and_parameter(options: dict[str, object]) -> None:
    variant, x = made(**options), qkv()
    bias = torch.randn(L, S, dtype=torch.float64, requires_grad=True)
    wanted = (*x, bias, *variant.parameters())
    mask = Mask.bias(bias) & Mask.lengths([7, 4]) & Mask.alibi(polyattn.alibi_slopes(H))
    found = torch.autograd.grad(variant(*x, mask).square().sum(), wanted)
    expected = torch.autograd.grad(variant.expected(*x, mask).square().sum(), wanted)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)
        assert a.any()


def test_it_starts_as_softmax() -> None:
    x = qkv()
    fresh = polyattn.create("stabilised_softmax", SIZES).double()
    torch.testing.assert_close(fresh(*x), polyattn.create("softmax")(*x), rtol=0, atol=1e-7)
    sharp = polyattn.create("stabilised_softmax", SIZES, scale=2.0).double()
    softmax = polyattn.create("softmax", scale=2.0)
    torch.testing.assert_close(sharp(*x), softmax(*x), rtol=0, atol=1e-6)


def test_normalised_logits_hear_neither_the_length_of_a_query_nor_a_shift() -> None:
    variant, (q, k, v) = made(normalise=True), qkv()
    shift = torch.randn(B, HKV, 1, D, dtype=torch.float64)
    found = variant(q * 30, k + shift, v, Mask.causal())
    torch.testing.assert_close(found, variant(q, k, v, Mask.causal()), rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("loud", [0.0, 1.0, 77.0])
def test_equal_logits_are_normalised_to_zero_with_finite_gradients(
    dtype: torch.dtype, loud: float
) -> None:
    variant = made(normalise=True, sink=True).to(dtype)
    with torch.no_grad():
        variant.get_parameter("sink").zero_()
    q = torch.full((B, H, L, D), loud, dtype=dtype, requires_grad=True)
    k = torch.full((B, HKV, S, D), loud, dtype=dtype, requires_grad=True)
    v = qkv()[2].to(dtype).detach().requires_grad_()
    out = variant(q, k, v, Mask.lengths([S, 1], S))
    for sample, keys in enumerate((S, 1)):
        mean = v[sample, :, :keys].sum(1, keepdim=True) / (keys + 1)
        mean = mean.repeat_interleave(H // HKV, 0).expand(H, L, DV)
        torch.testing.assert_close(out[sample], mean, rtol=0, atol=1e-2)
    wanted = (q, k, v, *variant.parameters())
    found = torch.autograd.grad(out.float().sum(), wanted)
    assert not any(g.isnan().any() for g in found)
    # The gradient of loud keys is large indeed: beyond float16.
    assert dtype == torch.float16 or all(torch.isfinite(g).all() for g in found)


def test_no_logit_is_beyond_the_cap() -> None:
    variant, (q, k, _) = made(softcap=1.5), qkv()
    weights = polyattn.weights(variant, 1e4 * q, k).detach()
    spread = weights.amax(-1) / weights.amin(-1)
    assert math.exp(2.9) < float(spread.max()) <= math.exp(3.0) + 1e-9


def test_a_sink_takes_what_it_weighs_and_the_claim_goes_with_it() -> None:
    variant, (q, k, _) = made(sink=True), qkv()
    with torch.no_grad():
        variant.get_parameter("sink").copy_(torch.tensor([-1e4, 0.0, 1.0, 1e4]))
    sums = polyattn.weights(variant, q, k).sum(-1)[0, :, 0].tolist()
    assert sums[0] == pytest.approx(1.0)
    assert 0 < sums[2] < 1
    assert sums[3] == 0.0
    assert not variant.claims.rows_sum_to_one
    assert made().claims.rows_sum_to_one


@pytest.mark.parametrize("options", SWITCHES, ids=str)
def test_a_row_that_a_mask_empties_is_zeros_with_zero_gradients(options: dict[str, object]) -> None:
    variant, x = made(**options), qkv()
    out = variant(*x, Mask.lengths([7, 0], S))
    assert not out[1].any()
    gradients = torch.autograd.grad(out.square().sum(), x)
    assert all(torch.isfinite(g).all() and not g[1].any() for g in gradients)


def test_what_it_refuses() -> None:
    with pytest.raises(ConfigError, match=r"softcap = 0\.0"):
        polyattn.create("stabilised_softmax", SIZES, softcap=0.0)
    with pytest.raises(ConfigError, match="needs the head geometry"):
        polyattn.create("stabilised_softmax")
