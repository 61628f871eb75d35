"""The cause that is most likely is named first, where a module or a model fails."""

from __future__ import annotations

import math

import pytest
import torch
from tests.testing import things_models, things_modules
from tests.testing.test_door_entrances import HERE, opened, run
from torch import Tensor, nn

from polyattn.testing.doors.entrances import Flags
from polyattn.testing.results import CheckFailure

CAUSAL = "check_module_causality_by_perturbation"
CAUSAL_MODEL = "check_lm_causality_by_gradient"
PADDING = "check_module_padding_equals_truncation"
BATCH = "check_module_batch_independence"
CACHE = "check_lm_cached_decoding"
ISOLATION = "check_lm_cache_isolation"


class OneAhead(things_modules.Attention):
    def closed(self, q, k, padding):
        return torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(2)


class Turned(things_modules.Attention):
    def closed(self, q, k, padding):
        return torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(-1)


class ByFifteen(things_modules.Attention):
    def weights(self, q, k, padding):
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        later = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(1)
        return scores.masked_fill(later, -15.0).softmax(-1)


class ByTen(things_modules.Attention):
    def weights(self, q, k, padding):
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        later = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(1)
        return scores.masked_fill(later, -10.0).softmax(-1)


class BatchNormed(things_modules.Attention):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(things_modules.WIDTH, track_running_stats=False)

    def forward(self, x, key_padding_mask=None):
        return super().forward(self.norm(x.mT).mT, key_padding_mask)


class AddsTheMean(things_modules.Attention):
    def forward(self, x, key_padding_mask=None):
        return super().forward(x + 0.1 * x.mean(0, keepdim=True), key_padding_mask)


class ViewsTheBatch(things_modules.Attention):
    """Merged as if the sequence came first: rows of several samples lie beside each other."""

    def merge(self, x: Tensor) -> Tensor:
        return super().merge(x).transpose(0, 1).reshape(len(x), x.shape[2], -1)


class PeeksTwice(things_models.SeesOneAhead):
    """Two layers, each with a mask that is off by one."""

    def layer(self, x, mask, past):
        x, _ = super().layer(x, mask, None)
        return super().layer(x, mask, past)


class LosesTheFirst(things_models.Model):
    def layer(self, x, mask, past):
        past = past if past is None else tuple(t[:, :, 1:] for t in past)
        return super().layer(x, mask, past)


THIS = f"{HERE / 'test_suspects.py'}:"


@pytest.mark.parametrize(
    ("door", "name", "check", "words"),
    [
        ("module", "Attention", CAUSAL, "no causal mask at all"),
        ("module", f"{THIS}OneAhead", CAUSAL, "off by one"),
        ("module", f"{THIS}Turned", CAUSAL, "turned round"),
        ("module", f"{THIS}ByFifteen", CAUSAL, "a number in place of -inf"),
        ("module", "LaterOfMinusThirty", CAUSAL, "a number in place of -inf"),
        ("module", "LaterOfMinusTenThousand", CAUSAL, "a number in place of -inf"),
        ("module", f"{THIS}ByTen", CAUSAL, "a small number (-10) in place of -inf"),
        ("module", "StrictlyLeaky", CAUSAL, "causal by blocks only"),
        ("module", "LeaksTheMean", CAUSAL, "a mean, a norm or a sum over all positions"),
        ("module", "PaddingOfMinusTen", PADDING, "a small number (-10) in place of -inf"),
        ("module", "PaddingOfMinusHundred", PADDING, "a number in place of -inf (-1e4"),
        ("module", "AddsMinusHundred", PADDING, "a number in place of -inf (-1e4"),
        ("module", "MeanOverPadding", PADDING, "a mean or a norm over padding"),
        ("module", "MergesWithoutTranspose", PADDING, "heads merged without a transpose"),
        ("module", f"{THIS}BatchNormed", BATCH, "BatchNorm1d in norm"),
        ("module", f"{THIS}AddsTheMean", BATCH, "a mean, a maximum or a norm over the batch"),
        ("module", f"{THIS}ViewsTheBatch", BATCH, "a view() or reshape() that mixes samples"),
        ("lm", "SeesAll", CAUSAL_MODEL, "no causal mask at all"),
        ("lm", "SeesAll", CACHE, "not the cache, but the whole call: no causal mask at all"),
        ("lm", "SeesAll", "check_lm_longest", "no causal mask at all"),
        ("lm", "TableOneTooShort", "check_lm_longest", ""),
        ("lm", "SeesOneAhead", CAUSAL_MODEL, "off by one"),
        ("lm", "CentresTheLogits", CAUSAL_MODEL, "a mean, a norm or a sum over all positions"),
        ("lm", "PlacesFromZero", CACHE, "positions: every cached token is heard"),
        ("lm", "AlignedAtTheFirstKey", CACHE, "a causal mask of the new tokens alone"),
        ("lm", f"{THIS}LosesTheFirst", CACHE, "off by one: the first cached token is lost"),
        ("lm", f"{THIS}PeeksTwice", CAUSAL_MODEL, "off by one (diagonal=2 in place of 1)"),
        ("lm", f"{THIS}PeeksTwice", CACHE, "not the cache, but the whole call: the mask is off"),
        ("lm", f"{THIS}PeeksTwice", ISOLATION, "not the cache, but the whole call: the mask is"),
        ("lm", "AlignedAtTheFirstKey", ISOLATION, "but decoding itself"),
        ("lm", "SharedCache", ISOLATION, ""),
        ("lm", "MixesTheBatch", BATCH, "a mean, a maximum or a norm over the batch"),
        ("module", "DetachesItsInput", "check_module_causality_by_gradient", ""),
        ("module", "LeaksItsLastGradient", "check_module_causality_by_gradient", ""),
    ],
)
def test_the_cause_that_is_likely_comes_first(door: str, name: str, check: str, words: str) -> None:
    failure = first_failure(door, name, check)
    first = failure.property.causes[0]
    assert len(failure.property.causes) >= (3 if words else 2)
    if words:
        assert first.startswith("most likely: ")
        assert words in first
        assert f"- {first}" in str(failure)
    else:
        assert not first.startswith("most likely")


def test_the_likely_cause_belongs_to_the_verdict() -> None:
    door = opened("lm", "SeesOneAhead")
    told = door.verdict(run(door))
    assert told.startswith("not correct; fix first, most likely: the mask is off by one")


def first_failure(door: str, name: str, check: str) -> CheckFailure:
    flags = Flags(causal=True) if door == "module" and check == CAUSAL else None
    for planned in opened(door, name, flags).checks():
        if planned.name == check:
            try:
                planned.run()
            except CheckFailure as failure:
                return failure
    raise AssertionError(f"{name} passes {check}")
