"""Each claim is proven: one that is made and is not so fails, of a variant that is right without.

For every field of the claims there is a variant here that passes all its checks as it stands, and a
claim of that field that does not hold of it. A claim that no check reads would pass as well.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from functools import cache
from typing import Any

import pytest
import torch
from tests.testing.broken_claims import _OnceOnly
from tests.testing.broken_maps import PlainGate
from tests.testing.conformance_page import PAGE
from tests.testing.correct import Plain
from torch import Tensor

from polyattn import (
    Capabilities,
    FeatureMapCapabilities,
    Inputs,
    Mask,
    SequenceAttention,
    Support,
)
from polyattn.capabilities import Call, Lengths, Refusal
from polyattn.testing import Result, Status, run_checks, subjects_of_class
from polyattn.testing.planned import Check
from polyattn.testing.runner import checks_of

DTYPES = frozenset({torch.float64, torch.float32})
CPU = Support(dtypes=DTYPES)
Claims = Capabilities | FeatureMapCapabilities


class Odd(SequenceAttention):
    """asinh of 0.9 of a mean that favours late keys: of what can be claimed, nothing holds."""

    capabilities = Capabilities(
        unequal_lengths=False,
        grouped_heads="no",
        value_width=False,
        exactness="own kernel",
        devices={"cpu": CPU},
    )

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        # What was not claimed is computed wrongly: other lengths, widths, heads and dtypes.
        odd = (q.shape[2] != k.shape[2]) + (q.shape[3] != v.shape[3]) + (q.shape[1] != k.shape[1])
        odd += q.dtype not in DTYPES
        k, v = (x.repeat(1, q.shape[1] // x.shape[1], 1, 1) for x in (k, v))
        logits = self.scale_for(q.shape[-1]) * (q @ k.mT)
        weights = self.weights(logits + 0.1 * torch.arange(k.shape[2], dtype=q.dtype), mask)
        out = torch.asinh((0.9 + 0.2 * odd) * (weights @ v))
        if out.detach().sum().item() == 1e9:  # A branch that compilers do not follow.
            return out
        return _OnceOnly.apply(out)  # type: ignore[no-any-return, no-untyped-call]

    def weights(self, logits: Tensor, mask: Mask) -> Tensor:
        return logits.softmax(-1)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
        logits = self.scale_for(q.shape[-1]) * torch.einsum("bhld,bhsd->bhls", q, k)
        odds = (logits + torch.arange(k.shape[2], dtype=q.dtype) / 10).exp()
        total = odds.sum(-1, keepdim=True)
        return torch.asinh(0.9 * torch.einsum("bhls,bhsv->bhlv", odds / total, v))


class Unlearnt(Odd):
    capabilities = dataclasses.replace(
        Odd.capabilities, devices={"cpu": dataclasses.replace(CPU, backward=False)}
    )

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        return super().attend(q, k, v, mask, inputs).detach()


class Fours(Odd):
    """Takes lengths that are multiples of four."""

    capabilities = dataclasses.replace(Odd.capabilities, lengths=Lengths(multiple_of=4))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        out = super().attend(q, k, v, mask, inputs)
        return out if k.shape[2] % 4 == 0 else 2 * out


class Right(Plain):
    """Softmax attention that claims its masks alone."""

    capabilities = Capabilities(
        masks={"causal", "padding", "dense"}, devices={"cpu": dataclasses.replace(CPU)}
    )


class Forgets(Right):
    """Decoding is where it is wrong."""

    def step(self, q, k, v, state, mask, inputs):  # type: ignore[no-untyped-def]
        out, state = super().step(q, k, v, state, mask, inputs)
        return 0.5 * out, state


class Obliging(Right):
    """Answers whatever is asked, with the mask that is given or with none."""

    def refusals(self, call: Call) -> tuple[Refusal, ...]:
        return tuple(x for x in super().refusals(call) if not str(x.value).startswith("without"))


class Approximate(Odd):
    capabilities = dataclasses.replace(Odd.capabilities, exactness="approximate")


class OddGate(PlainGate):
    """Not a gate alone: it adds what hangs on the place, the batch and the number of dimensions."""

    capabilities = FeatureMapCapabilities(
        spatial_dims={2}, batch_independent=False, devices={"cpu": CPU}
    )

    def attend(self, x: Tensor, keep: Tensor | None) -> Tensor:
        out = super().attend(x, None)
        added = self._added(x) if x.dim() == 4 and x.dtype in DTYPES else 1.0
        return out + added if x.detach().sum().item() != 1e9 else out

    def reference(self, x: Tensor, keep: Tensor | None) -> Tensor:
        return super().reference(x, keep) + self._added(x)

    def _added(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[-1], dtype=x.dtype)
        return 3 * x.flatten(1).mean() * torch.ones_like(x) + places


SEQUENCES: dict[str, tuple[type, dict[str, Any]]] = {
    "masks": (Odd, {"masks": {"padding"}}),
    "requires": (Obliging, {"requires": {"causal"}}),
    "unequal_lengths": (Odd, {"unequal_lengths": True}),
    "grouped_heads": (Odd, {"grouped_heads": "native"}),
    "value_width": (Odd, {"value_width": True}),
    "dropout": (Odd, {"dropout": True}),
    "state": (Forgets, {"state": "key_value"}),
    "lengths": (Fours, {"lengths": Lengths()}),
    "devices": (Odd, {"devices": {"cpu": Support()}}),
    "exactness": (Odd, {"exactness": "exact"}),
    "limit": (Approximate, {"limit": "of many keys"}),
    "improves_with": (Approximate, {"improves_with": "scale"}),
    "random_features": (Odd, {"random_features": "fixed"}),
    "linear_memory": (Odd, {"linear_memory": True}),
    "rows_sum_to_one": (Odd, {"rows_sum_to_one": True}),
    "linear_in_values": (Odd, {"linear_in_values": True}),
    "key_order_invariant": (Odd, {"key_order_invariant": True}),
    "nan_blind": (Right, {"nan_blind": True}),
    "compiles": (Odd, {"compiles": "fixed"}),
    "exports": (Odd, {"exports": "fixed"}),
}
MAPS: dict[str, tuple[type, dict[str, Any]]] = {
    "spatial_dims": (OddGate, {"spatial_dims": {1, 2}}),
    "keep": (OddGate, {"keep": True}),
    "gate": (OddGate, {"gate": (0.0, 1.0)}),
    "symmetry": (OddGate, {"symmetry": "translation"}),
    "pooling": (OddGate, {"gate": (-1e9, 1e9), "pooling": {"max"}}),
    "batch_independent": (OddGate, {"batch_independent": True}),
    "devices": (OddGate, {"devices": {"cpu": Support()}}),
    "compiles": (OddGate, {"compiles": "fixed"}),
    "exports": (OddGate, {"exports": "fixed"}),
}
SUPPORT: dict[str, tuple[type, dict[str, Any]]] = {
    "dtypes": (Odd, {"dtypes": DTYPES | {torch.bfloat16}}),
    "backward": (Unlearnt, {"backward": True}),
    "double_backward": (Odd, {"double_backward": True}),
    "forward_ad": (Odd, {"forward_ad": True}),
}
UNTRUE = {Capabilities: SEQUENCES, FeatureMapCapabilities: MAPS, Support: SUPPORT}


@pytest.mark.parametrize("claims", UNTRUE)
def test_every_claim_is_among_them(claims: type) -> None:
    assert set(UNTRUE[claims]) == {field.name for field in dataclasses.fields(claims)}


@cache
def right_without(variant: type) -> frozenset[str]:
    """The checks that the variant passes as it stands; it fails none."""
    results = run_checks(planned(variant), on_fail="collect", extended=True)
    assert not (bad := failed(results)), f"{bad[0].id}: {bad[0].reason}"
    return frozenset(result.id for result in results if result.status is Status.PASSED)


def planned(variant: type) -> list[Check]:
    return list(checks_of(subjects_of_class(variant.__name__, variant)))


def failed(results: Iterable[Result]) -> list[Result]:
    return [result for result in results if not result.status.good]


def found(patch: pytest.MonkeyPatch, variant: type, claims: dict[str, Any]) -> Result | None:
    """The first failure that the claim brings about; what it brings in is asked first."""
    before = right_without(variant)
    held = dataclasses.replace(variant.capabilities, **claims)  # type: ignore[attr-defined]
    patch.setattr(variant, "capabilities", held)
    for check in sorted(planned(variant), key=lambda check: check.id in before):
        for result in failed(run_checks([check], on_fail="collect", extended=True)):
            return result
    return None


@pytest.mark.parametrize("name", SEQUENCES)
def test_an_untrue_claim_of_a_sequence_variant_is_found(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    variant, claims = SEQUENCES[name]
    assert found(monkeypatch, variant, claims)


@pytest.mark.parametrize("name", MAPS)
def test_an_untrue_claim_of_a_feature_map_is_found(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    variant, claims = MAPS[name]
    assert found(monkeypatch, variant, claims)


@pytest.mark.parametrize("name", SUPPORT)
def test_an_untrue_claim_of_a_device_is_found(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    variant, claims = SUPPORT[name]
    (support,) = variant.capabilities.devices.values()  # type: ignore[attr-defined]
    wide = {"devices": {"cpu": dataclasses.replace(support, **claims)}}
    assert found(monkeypatch, variant, wide)


def test_a_claim_that_nothing_reads_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests above can fail: what brings no failure about gives none."""
    assert found(monkeypatch, OddGate, {}) is None


def test_what_the_page_calls_proven_in_part_are_claims() -> None:
    before, _, text = PAGE.read_text().partition("## Claims that are proven in part\n")
    assert before
    told = re.findall(r"^- `(\w+)`", text.partition("\n## ")[0], re.MULTILINE)
    assert told
    assert set(told) <= {field for table in UNTRUE.values() for field in table}
