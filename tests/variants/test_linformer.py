"""linformer: its definition, its limit, its padding, and what it refuses."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import polyattn
from polyattn import Mask, Sizes
from polyattn.errors import ConfigError, Unsupported

LONGEST = 12


def made(rank: int = 5, **options: float) -> polyattn.SequenceAttention:
    torch.manual_seed(0)
    sizes = Sizes(4, 8, 2, 6, max_length=LONGEST)
    variant = polyattn.create("linformer", sizes, rank=rank, **options)
    assert isinstance(variant, polyattn.SequenceAttention)
    return variant.double()


def qkv(keys: int = 7) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    sizes = ((2, 4, 5, 8), (2, 2, keys, 8), (2, 2, keys, 6))
    return [
        torch.randn(size, generator=generator, dtype=torch.float64).requires_grad_()
        for size in sizes
    ]


def by_loops(variant: polyattn.SequenceAttention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The formula, one number at a time."""
    e, f = (p.detach() for p in variant.parameters())
    out = torch.zeros(*q.shape[:3], v.shape[3], dtype=q.dtype)
    for b, h, i in torch.cartesian_prod(*(torch.arange(n) for n in q.shape[:3])).tolist():
        g, count = h // 2, k.shape[2]
        odds = []
        for r in range(e.shape[0]):
            key = sum(e[r, s] * k[b, g, s] for s in range(count))
            odds.append(float(torch.exp((q[b, h, i] * key).sum() / 8**0.5)))
        for r, odd in enumerate(odds):
            value = sum(f[r, s] * v[b, g, s] for s in range(count))
            out[b, h, i] += odd / sum(odds) * value
    return out


def test_it_is_the_formula() -> None:
    variant, (q, k, v) = made(), (t.detach() for t in qkv())
    expected = by_loops(variant, q, k, v)
    torch.testing.assert_close(variant(q, k, v).detach(), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(variant.expected(q, k, v).detach(), expected, rtol=0, atol=1e-12)


def test_gradients_reach_every_input_and_both_projections() -> None:
    variant, x = made(), qkv()
    mask = Mask.padding(torch.tensor([[True] * 7, [True, False, True, False, True, True, False]]))
    wanted = (*x, *variant.parameters())
    for m in (None, mask):
        found = torch.autograd.grad(variant(*x, m).square().sum(), wanted)
        expected = torch.autograd.grad(variant.expected(*x, m).square().sum(), wanted)
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-11)
            assert a.any()


def test_identity_projections_give_softmax() -> None:
    variant = made(rank=LONGEST)
    with torch.no_grad():
        for p in variant.parameters():
            p.copy_(torch.eye(LONGEST))
    x = qkv(keys=LONGEST)
    torch.testing.assert_close(variant(*x), polyattn.create("dense")(*x))


@pytest.mark.parametrize("real", [[0, 1, 2, 3], [3, 4, 5, 6], [0, 2, 3, 6]])
def test_where_the_padding_lies_changes_nothing(real: list[int]) -> None:
    variant, (q, k, v) = made(), qkv()
    keep = torch.zeros(2, 7, dtype=torch.bool)
    keep[:, real] = True
    alone = variant(q, k[:, :, real], v[:, :, real])
    spoilt = [torch.where(keep[:, None, :, None], t, 1e3) for t in (k, v)]
    torch.testing.assert_close(variant(q, *spoilt, Mask.padding(keep)), alone)


def test_no_real_key_gives_zeros() -> None:
    q, k, v = qkv()
    out = made()(q, k, v, Mask.lengths([7, 0], 7))
    assert not out[1].any()
    gradients = torch.autograd.grad(out.square().sum(), (q, k, v))
    assert all(torch.isfinite(g).all() and not g[1].any() for g in gradients)


def test_it_refuses_to_be_causal_and_to_run_past_its_length() -> None:
    variant = made()
    with pytest.raises(Unsupported, match="causal"):
        variant(*qkv(), Mask.causal())
    with pytest.raises(Unsupported, match="up to 12"):
        variant(*qkv(keys=13))
    with pytest.raises(ConfigError, match="max_length"):
        polyattn.create("linformer", Sizes(2, 4))
    with pytest.raises(ConfigError, match="rank = 0"):
        polyattn.create("linformer", Sizes(2, 4, max_length=8), rank=0)
