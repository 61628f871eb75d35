"""Attention with bad manners: shapes, arguments, randomness, memory, settings, silence, saving."""

from __future__ import annotations

from typing import Any

import torch
from tests.testing.correct import Plain
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from polyattn import Capabilities, Inputs, Mask, Sizes, kit


class Squeezes(Plain):
    def forward(self, q, k, v, mask=None, inputs=None):  # type: ignore[no-untyped-def]
        return super().forward(q, k, v, mask, inputs or {}).squeeze()


class AnswersInFloat32(Plain):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        return super().attend(q, k, v, mask, inputs).float()


class ReturnsATuple(Plain):
    def forward(self, q, k, v, mask=None, inputs=None):  # type: ignore[no-untyped-def]
        return super().forward(q, k, v, mask, inputs or {}), None


class ScalesInPlace(Plain):
    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        with torch.no_grad():
            q.mul_(q.shape[-1] ** -0.5)
        return q @ k.mT


class OpensTheMaskAfterwards(Plain):
    def out(self, weights: Tensor, v: Tensor) -> Tensor:
        return super().out(weights, v)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        out = super().attend(q, k, v, mask, inputs)
        for keep in mask.kept:
            keep.fill_(True)
        return out


class ConsumesRandomNumbers(Plain):
    def out(self, weights: Tensor, v: Tensor) -> Tensor:
        torch.rand(1)
        return super().out(weights, v)


class RedrawsItsFeatures(Plain):
    def build(self) -> None:
        self._generator = torch.Generator().manual_seed(0)

    def out(self, weights: Tensor, v: Tensor) -> Tensor:
        noise = torch.randn((), generator=self._generator).item()
        return super().out(weights, v) * (1 + 1e-12 * noise)


class RemembersMasksByShape(Plain):
    def build(self) -> None:
        self._masks: dict[Any, Tensor | None] = {}

    def keep(self, mask: Mask, logits: Tensor) -> Tensor | None:
        key = (mask.parts, logits.shape)
        if key not in self._masks:
            self._masks[key] = super().keep(mask, logits)
        return self._masks[key]


class RemembersTheLongest(Plain):
    """A buffer grown by longer calls changes what shorter ones give."""

    def build(self) -> None:
        self._longest = 12

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        self._longest = max(self._longest, k.shape[2])
        return super().logits(q, k) * (self._longest / 12)


class IgnoresBiasInSilence(Plain):
    """Does not claim biases, and does not refuse them."""

    capabilities = Capabilities(masks={"causal", "bias"}, rows_sum_to_one=True)

    def __init__(self, config: Any = None, sizes: Sizes | None = None) -> None:
        super().__init__(config, sizes)
        self.claims = Capabilities(masks={"causal"}, rows_sum_to_one=True)

    def refusals(self, call: Any) -> tuple[Any, ...]:
        return ()


class RefusesWithoutAName(Plain):
    capabilities = Capabilities(masks={"causal"}, unequal_lengths=False)

    def forward(self, q, k, v, mask=None, inputs=None):  # type: ignore[no-untyped-def]
        if q.shape[2] != k.shape[2]:
            raise RuntimeError("cannot")
        return super().forward(q, k, v, mask, inputs or {})


class AnswersByItsReference(Plain):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        return self.reference(q, kit.repeat_heads(k, q.shape[1]), v, mask, inputs)


class FallsBackWhenItFails(Plain):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        try:
            raise NotImplementedError("no kernel for this call")
        except NotImplementedError:
            return self.reference(q, k, v, mask, inputs)


class SetsThreads(Plain):
    def out(self, weights: Tensor, v: Tensor) -> Tensor:
        torch.set_num_threads(torch.get_num_threads() + 1)
        return super().out(weights, v)


class ChangesKernelFlags(Plain):
    def out(self, weights: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            return super().out(weights, v)


class Prints(Plain):
    def out(self, weights: Tensor, v: Tensor) -> Tensor:
        print("weights", tuple(weights.shape))
        return super().out(weights, v)


class TableThatGrows(Plain):
    def build(self) -> None:
        self.register_buffer("table", torch.zeros(4))

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        if k.shape[2] > self.table.shape[0]:
            self.table = torch.zeros(k.shape[2])
        return super().logits(q, k)


class FeaturesOutsideTheState(Plain):
    def build(self) -> None:
        self._mix = 1 + 0.1 * torch.rand(1).item()

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return super().logits(q, k) * self._mix


RAISES = frozenset({RefusesWithoutAName})
"""Their fault is that they raise; of all others something wrong must be seen."""

CAUGHT: tuple[tuple[type[Plain], str], ...] = (
    (Squeezes, "check_output_shape_dtype_device"),
    (AnswersInFloat32, "check_output_shape_dtype_device"),
    (ReturnsATuple, "check_output_shape_dtype_device"),
    (ScalesInPlace, "check_inputs_not_mutated"),
    (OpensTheMaskAfterwards, "check_inputs_not_mutated"),
    (ConsumesRandomNumbers, "check_eval_deterministic_and_rng_neutral"),
    (RedrawsItsFeatures, "check_eval_deterministic_and_rng_neutral"),
    (RemembersMasksByShape, "check_call_is_stateless"),
    (RemembersTheLongest, "check_call_is_stateless"),
    (IgnoresBiasInSilence, "check_unsupported_raises"),
    (RefusesWithoutAName, "check_unsupported_raises"),
    (AnswersByItsReference, "check_backend_really_used"),
    (FallsBackWhenItFails, "check_backend_really_used"),
    (SetsThreads, "check_global_state_untouched"),
    (ChangesKernelFlags, "check_global_state_untouched"),
    (Prints, "check_global_state_untouched"),
    (TableThatGrows, "check_state_dict_roundtrip"),
    (FeaturesOutsideTheState, "check_state_dict_roundtrip"),
)
"""Each with the check that must catch it, by name."""
