"""What is rounding beside a gradient, and what is a leak."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from polyattn.testing.checks.module_attention import hears_nothing_later
from polyattn.testing.results import Mismatch
from polyattn.testing.tools.cases import normal


def convolved(x: Tensor, kernel: Tensor) -> Tensor:
    """A causal convolution over positions by FFT, x (B, S, E): right, but for rounding."""
    length = 2 * x.shape[1]
    spectrum = torch.fft.rfft(x, length, dim=1) * torch.fft.rfft(kernel, length)[:, None]
    return torch.fft.irfft(spectrum, length, dim=1)[:, : x.shape[1]]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_rounding_of_a_convolution_by_fft_is_no_leak(dtype: torch.dtype) -> None:
    x = normal(1, 37, 5, seed=0).to(dtype).requires_grad_()
    out = convolved(x, normal(37, seed=1).to(dtype))
    (grad,) = torch.autograd.grad(out[:, 3].sum(), x, retain_graph=True)
    assert bool((grad[:, 4:] != 0).any()), "nothing is rounded here: the test tests nothing"
    hears_nothing_later(out, x, "a convolution")


@pytest.mark.parametrize(("dtype", "leak"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
def test_a_small_leak_is_one(dtype: torch.dtype, leak: float) -> None:
    x = normal(1, 37, 5, seed=0).to(dtype).requires_grad_()
    out = convolved(x, normal(37, seed=1).to(dtype)) + leak * x.roll(-1, dims=1)
    with pytest.raises(Mismatch, match="which comes later"):
        hears_nothing_later(out, x, "a convolution that leaks")
