"""dot, general, cosine, additive: their formulas, their special cases, and what they refuse."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import polyattn
from polyattn import Mask, Sizes
from polyattn.errors import ConfigError
from polyattn.measure.memory import peak_bytes
from polyattn_plugins import scores_kernel

B, H, HKV, L, S, D, DV = 2, 4, 2, 5, 7, 8, 6
NAMES = ("dot", "general", "cosine", "additive")
SIZES = Sizes(H, D, HKV, DV)


def made(name: str, sizes: Sizes = SIZES, **options: float) -> polyattn.SequenceAttention:
    torch.manual_seed(0)
    variant = polyattn.create(name, sizes, **options)
    assert isinstance(variant, polyattn.SequenceAttention)
    variant.double()
    with torch.no_grad():
        for p in variant.parameters():
            p.add_(0.2 * torch.randn_like(p))
    return variant


def qkv() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    sizes = ((B, H, L, D), (B, HKV, S, D), (B, HKV, S, DV))
    return [
        torch.randn(size, generator=generator, dtype=torch.float64).requires_grad_()
        for size in sizes
    ]


def score(variant: polyattn.SequenceAttention, name: str, h: int, q: Tensor, k: Tensor) -> float:
    """The score of one query with one key."""
    p = {n: x.detach().unflatten(0, (H, -1))[h] for n, x in variant.named_parameters()}
    if name == "general":
        form = p["form"][0] / D**0.5
        return sum(float(q[a] * form[a, b] * k[b]) for a in range(D) for b in range(D))
    if name == "cosine":
        return float(p["gain"] * (q @ k)) / math.sqrt(float(q @ q) * float(k @ k))
    if name == "additive":
        total = 0.0
        for e, weight in enumerate(p["output_weight"][0].tolist()):
            inner = q @ p["query_weight"][e] + k @ p["key_weight"][e]
            total += weight * math.tanh(float(inner))
        return total
    return float(q @ k)


def by_loops(variant: polyattn.SequenceAttention, name: str, x: list[Tensor]) -> Tensor:
    """The formula, one number at a time, where query i sees the keys up to its own."""
    q, k, v = (t.detach() for t in x)
    out = torch.zeros(B, H, L, DV, dtype=q.dtype)
    for b, h, i in torch.cartesian_prod(*(torch.arange(n) for n in (B, H, L))).tolist():
        g, seen = h // (H // HKV), range(i + S - L + 1)
        odds = [math.exp(score(variant, name, h, q[b, h, i], k[b, g, j])) for j in seen]
        for j, odd in zip(seen, odds, strict=True):
            out[b, h, i] += odd / sum(odds) * v[b, g, j]
    return out


@pytest.mark.parametrize("name", NAMES)
def test_it_is_the_formula(name: str) -> None:
    variant, x = made(name), qkv()
    expected = by_loops(variant, name, x)
    for found in (variant(*x, Mask.causal()), variant.expected(*x, Mask.causal())):
        torch.testing.assert_close(found.detach(), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_reach_every_input_and_parameter(name: str) -> None:
    variant, x = made(name), qkv()
    bias = torch.randn(L, S, dtype=torch.float64, requires_grad=True)
    wanted = (*x, bias, *variant.parameters())
    mask = Mask.bias(bias) & Mask.lengths([7, 4]) & Mask.alibi(polyattn.alibi_slopes(H))
    found = torch.autograd.grad(variant(*x, mask).square().sum(), wanted)
    expected = torch.autograd.grad(variant.expected(*x, mask).square().sum(), wanted)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-11)
        assert a.any()


def test_dot_is_softmax_with_a_scale_of_one() -> None:
    x = qkv()
    softmax = polyattn.create("softmax", scale=1.0)
    torch.testing.assert_close(made("dot")(*x, Mask.causal()), softmax(*x, Mask.causal()))


def test_general_starts_as_softmax() -> None:
    x = qkv()
    fresh = polyattn.create("general", SIZES).double()
    torch.testing.assert_close(fresh(*x), polyattn.create("softmax")(*x))


def test_cosine_hears_directions_alone() -> None:
    variant, (q, k, v) = made("cosine"), qkv()
    stretched = q * torch.rand(B, H, L, 1).double() * 90, k * torch.rand(B, HKV, S, 1).double() * 90
    torch.testing.assert_close(variant(*stretched, v), variant(q, k, v))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_cosine_with_zeros_is_zero_with_zero_gradients(dtype: torch.dtype) -> None:
    variant = made("cosine").to(dtype)
    q, k, v = (x.detach().to(dtype) for x in qkv())
    q[0, 0, 2], k[0, 0] = 0, 0
    x = [t.requires_grad_() for t in (q, k, v)]
    out = variant(*x)
    mean = v[0, :1].mean(1, keepdim=True).expand(H // HKV, L, DV)
    torch.testing.assert_close(out[0, : H // HKV], mean, rtol=0, atol=2e-2)
    wanted = (*x, *variant.parameters())
    found = torch.autograd.grad(out.float().square().sum(), wanted)
    expected = torch.autograd.grad(variant.expected(*x).float().square().sum(), wanted)
    assert all(torch.isfinite(g).all() for g in (*found, *expected))
    for gradient_q, gradient_k, *_ in (found, expected):
        assert not gradient_q[0, 0, 2].any()
        assert not gradient_k[0, 0].any()
        assert gradient_k[0, 1].any()


@pytest.mark.parametrize("together", [1, 2, 100])
def test_additive_is_the_same_in_blocks_of_any_size(
    together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    variant, x = made("additive"), qkv()
    wanted = (*x, *variant.parameters())
    expected = torch.autograd.grad(variant.expected(*x).square().sum(), wanted)
    monkeypatch.setattr(scores_kernel, "_TOGETHER", together)
    found = torch.autograd.grad(variant(*x).square().sum(), wanted)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_additive_never_holds_the_hidden_layer_of_all_pairs() -> None:
    length, hidden = 256, 64
    torch.manual_seed(0)
    variant = polyattn.create("additive", Sizes(2, 8), hidden=hidden)
    q, k, v = (torch.randn(1, 2, length, 8, requires_grad=True) for _ in range(3))

    def call() -> tuple[Tensor, ...]:
        return torch.autograd.grad(variant(q, k, v).sum(), (q, k, v, *variant.parameters()))

    call()
    pairs = 4 * 2 * length * length
    block = 4 * 2 * scores_kernel._TOGETHER * length * hidden
    assert peak_bytes(call) < 6 * pairs + 2 * block < pairs * hidden / 4


@pytest.mark.parametrize("name", NAMES)
def test_a_row_that_a_mask_empties_is_zeros_with_zero_gradients(name: str) -> None:
    variant, x = made(name), qkv()
    out = variant(*x, Mask.lengths([7, 0], S))
    assert not out[1].any()
    gradients = torch.autograd.grad(out.square().sum(), x)
    assert all(torch.isfinite(g).all() and not g[1].any() for g in gradients)


def test_what_they_refuse() -> None:
    with pytest.raises(ConfigError, match="hidden = 0"):
        polyattn.create("additive", SIZES, hidden=0)
    with pytest.raises(ConfigError, match="gain = 0"):
        polyattn.create("cosine", SIZES, gain=0.0)
    for name in ("general", "cosine", "additive"):
        with pytest.raises(ConfigError, match="needs the head geometry"):
            polyattn.create(name)
    for name in ("dot", "cosine", "additive"):
        with pytest.raises(ConfigError, match="scale"):
            polyattn.create(name, SIZES, scale=1.0)
