"""Linear and approximate attention that is wrong in one way each, and rules for lengths."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import torch
from tests.testing.correct import SOFTMAX, Plain
from tests.testing.correct_kinds import Featured, Pooled, Random
from torch import Tensor

from polyattn import (
    Inputs,
    Lengths,
    Mask,
    RecurrentState,
    Refusal,
    SequenceAttention,
    State,
)


class EluPlusOne(Featured):
    """The feature map as the paper writes it, rounded in the dtype of the inputs."""

    def feature(self, x: Tensor) -> Tensor:
        return torch.nn.functional.elu(x) + 1


class EpsilonInTheDenominator(Featured):
    def normalised(self, out: Tensor, total: Tensor) -> Tensor:
        return out / (total + 1e-6)


class ClampedNormaliser(Featured):
    def normalised(self, out: Tensor, total: Tensor) -> Tensor:
        return out / total.clamp(min=1e-4)


class NormaliserWithoutKeys(Featured):
    """The state's normaliser learns nothing from old keys."""

    def summed(self, z: Tensor, mapped: Tensor) -> Tensor:
        return z.detach() + mapped


class NormaliserOfTheNewest(Featured):
    """The state's normaliser forgets half of the past at each token."""

    def summed(self, z: Tensor, mapped: Tensor) -> Tensor:
        return z * 0.5 + mapped


class KeepsItsTokens(Featured):
    """A recurrent state with everything it has seen beside its sums."""

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, state: Any, mask: Mask, inputs: Inputs
    ) -> tuple[Tensor, State]:
        out, grown = super().step(q, k, v, state, mask, inputs)
        assert isinstance(grown, RecurrentState)
        seen = torch.cat([state.tensors.get("seen", k[:, :, :0]), k], dim=2)
        return out, dataclasses.replace(grown, tensors={**grown.tensors, "seen": seen})


class OneDirection(Random):
    """Draws once, and takes that for all features."""

    def drawn(self, count: int) -> Tensor:
        return super().drawn(1).expand(count, -1).clone()


class WithoutTheSquare(Random):
    """Forgets the factor that makes the estimate one without a bias."""

    def half_square(self, x: Tensor) -> Tensor:
        return super().half_square(x) * 0


class QuarterOfTheSquare(Random):
    """The same factor with another constant: a bias that many features bring to light."""

    def half_square(self, x: Tensor) -> Tensor:
        return super().half_square(x) / 4


class SixteenFeatures(Random):
    """Never reads its option."""

    def drawn(self, count: int) -> Tensor:
        return super().drawn(16)


class SeedOfItsOwn(Random):
    def drawn(self, count: int) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        return torch.randn(count, self.require_sizes().head_dim, generator=generator)


class DirectionsNotSaved(Random):
    def build(self) -> None:
        self.register_buffer("directions", self.drawn(self.config.features), persistent=False)


class RedrawsInTraining(Random):
    """Draws again without a word of it."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        if self.training:
            self.directions = self.drawn(self.config.features)
        return super().attend(q, k, v, mask, inputs)


class NeverRedraws(Random):
    capabilities = dataclasses.replace(Random.capabilities, random_features="redrawn")


class FeaturesUndeclared(Random):
    capabilities = dataclasses.replace(Random.capabilities, random_features="no")


class PooledWithoutRoot(Pooled):
    """The scale is that of the width, and not of its root: in its reference, too."""

    def logit_scale(self, width: int) -> float:
        return 1 / width


class NamesALimitOnly(Pooled):
    at_limit = SequenceAttention.at_limit


class LastKeyDropped(Pooled):
    """The last two keys share an average, however many averages there are."""

    def place(self, keys: int) -> Tensor:
        return super().place(keys).clamp(max=max(0, keys - 2))


class LengthAskedOnce(Plain):
    """Judges the length of its first call, and takes every length afterwards."""

    capabilities = dataclasses.replace(Plain.capabilities, lengths=Lengths(multiple_of=4))

    def build(self) -> None:
        self._judged = False

    def refuse_lengths(
        self, queries: int, keys: int, window: tuple[int | None, int | None] | None
    ) -> Iterable[Refusal]:
        if self._judged:
            return ()
        self._judged = True
        return super().refuse_lengths(queries, keys, window)


class CutsAtItsLongest(Plain):
    """A rule with a longest length, which it keeps by cutting the sequence off."""

    capabilities = dataclasses.replace(Plain.capabilities, lengths=Lengths(up_to=40))

    def refuse_lengths(
        self, queries: int, keys: int, window: tuple[int | None, int | None] | None
    ) -> Iterable[Refusal]:
        return super().refuse_lengths(queries, min(keys, 40), window)


class RolledInBlocks(Plain):
    """Padded in front to a multiple of eight, and cut at the end: in its reference, too."""

    capabilities = dataclasses.replace(SOFTMAX, exactness="own kernel")

    def out(self, weights: Tensor, v: Tensor) -> Tensor:
        return self.rolled(super().out(weights, v))

    def reference(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        return self.rolled(super().reference(q, k, v, mask, inputs))

    def rolled(self, out: Tensor) -> Tensor:
        return out.roll(-out.shape[2] % 8, dims=2)


CAUGHT: tuple[tuple[type[SequenceAttention], str], ...] = (
    (EluPlusOne, "check_linear_normaliser"),
    (EpsilonInTheDenominator, "check_linear_normaliser"),
    (ClampedNormaliser, "check_linear_normaliser"),
    (NormaliserWithoutKeys, "check_state_matches_quadratic"),
    (NormaliserOfTheNewest, "check_state_matches_quadratic"),
    (KeepsItsTokens, "check_state_matches_quadratic"),
    (OneDirection, "check_approximation_improves"),
    (WithoutTheSquare, "check_approximation_improves"),
    (QuarterOfTheSquare, "check_approximation_improves"),
    (SixteenFeatures, "check_approximation_improves"),
    (SeedOfItsOwn, "check_stochastic_features"),
    (DirectionsNotSaved, "check_stochastic_features"),
    (RedrawsInTraining, "check_stochastic_features"),
    (NeverRedraws, "check_stochastic_features"),
    (FeaturesUndeclared, "check_stochastic_features"),
    (PooledWithoutRoot, "check_exact_at_limit"),
    (NamesALimitOnly, "check_exact_at_limit"),
    (LastKeyDropped, "check_exact_at_limit"),
    (LengthAskedOnce, "check_length_contract"),
    (CutsAtItsLongest, "check_length_contract"),
    (RolledInBlocks, "check_length_contract"),
)
"""Each with the check that must catch it, by name."""
