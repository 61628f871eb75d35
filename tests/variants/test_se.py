"""se: its definition, its widths, its padding and its memory format."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import polyattn


def made(channels: int = 8, **options: float) -> polyattn.FeatureMapAttention:
    torch.manual_seed(0)
    variant = polyattn.create("se", channels=channels, **options)
    assert isinstance(variant, polyattn.FeatureMapAttention)
    return variant.double()


def maps(*spatial: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(3, 8, *spatial, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("spatial", [(9,), (5, 7), (3, 4, 5)])
def test_output_and_gradients_are_the_definition(spatial: tuple[int, ...]) -> None:
    variant, x = made(ratio=0.5), maps(*spatial).requires_grad_()
    keep = torch.rand(3, *spatial) > 0.4
    wanted = (x, *variant.parameters())
    for k in (None, keep):
        found, expected = variant(x, k), variant.expected(x, k)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
        for a, b in zip(
            torch.autograd.grad(found.square().sum(), wanted),
            torch.autograd.grad(expected.square().sum(), wanted),
            strict=True,
        ):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-11)


@pytest.mark.parametrize(
    ("channels", "ratio", "least", "width"),
    [(64, 0.0625, 1, 4), (8, 0.0625, 1, 1), (8, 0.0625, 4, 4), (8, 1.0, 1, 8), (64, 0.25, 8, 16)],
)
def test_the_hidden_width_is_never_zero(
    channels: int, ratio: float, least: int, width: int
) -> None:
    variant = made(channels, ratio=ratio, min_width=least)
    assert variant.squeeze.weight.shape == (width, channels)
    assert f"out_features={width}" in repr(variant)
    assert sum(p.numel() for p in variant.parameters()) == 2 * width * channels + width + channels


def test_padded_pixels_do_not_reach_real_ones() -> None:
    variant, x = made(ratio=0.5), maps(5, 7)
    keep = torch.zeros(3, 5, 7, dtype=torch.bool)
    keep[:, :4, :5] = True
    spoilt = x.masked_fill(~keep[:, None], 1e3)
    found = variant(spoilt, keep)[:, :, :4, :5]
    torch.testing.assert_close(found, variant(x[:, :, :4, :5]))


def test_the_memory_format_is_kept() -> None:
    variant, x = made(), maps(5, 7)
    out = variant(x.to(memory_format=torch.channels_last))
    assert out.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(out, variant(x))


def test_the_mean_of_a_half_precision_map_does_not_overflow() -> None:
    variant = made().half()
    x = torch.full((1, 8, 64, 64), 60000.0, dtype=torch.float16)
    assert torch.isfinite(variant(x)).all()
