"""Attention through custom operators that declare to torch something else than they do."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from tests.testing.correct import SOFTMAX, Plain
from torch import Tensor

from polyattn import Support

FORWARD = {"cpu": Support(backward=False)}


@torch.library.custom_op("polyattn_tests::wrong_fake", mutates_args=())
def _wrong_fake(q: Tensor, v: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Weighted values, and the weights' sums, kept for whoever asks."""
    return weights @ v, weights.sum(-1, keepdim=True)


@_wrong_fake.register_fake
def _(q: Tensor, v: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    return weights @ v, weights.sum(-1)


@torch.library.custom_op("polyattn_tests::writes", mutates_args=())
def _writes(v: Tensor, weights: Tensor) -> Tensor:
    """Weighted values; the weights are overwritten, which nobody is told."""
    out = weights @ v
    weights.zero_()
    return out


@_writes.register_fake
def _(v: Tensor, weights: Tensor) -> Tensor:
    return weights @ v


class FakeOfAnotherShape(Plain):
    capabilities = dataclasses.replace(SOFTMAX, devices=FORWARD)

    def out(self, weights: Tensor, v: Tensor) -> Tensor:
        out: Tensor = _wrong_fake(weights, v, weights)[0]
        return out


class OperatorThatWrites(Plain):
    capabilities = dataclasses.replace(SOFTMAX, devices=FORWARD, compiles="no")

    def out(self, weights: Tensor, v: Tensor) -> Tensor:
        out: Tensor = _writes(v, weights)
        return out


CAUGHT: tuple[tuple[type[Any], str], ...] = (
    (FakeOfAnotherShape, "check_custom_operators"),
    (OperatorThatWrites, "check_custom_operators"),
)
