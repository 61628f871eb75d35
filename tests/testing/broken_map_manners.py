"""Feature maps with bad manners: options, memory, arguments, settings, saving, narrow dtypes."""

from __future__ import annotations

import random
from typing import Any

import pydantic
import torch
from tests.testing.broken_maps import PlainGate
from torch import Tensor, nn

from polyattn import Options


class DoublesItsOption(PlainGate):
    class Config(Options):
        ratio: float = 0.25

        @pydantic.field_validator("ratio")
        @classmethod
        def _doubled(cls, value: float) -> float:
            return 2 * value

    @classmethod
    def examples(cls) -> tuple[Any, ...]:
        return (cls.Config(ratio=0.5),)


class RoundsItsOption(PlainGate):
    class Config(Options):
        ratio: float = 0.125

        @pydantic.field_serializer("ratio")
        def _rounded(self, value: float) -> float:
            return round(value, 1)


class ReadsAnotherPlace(PlainGate):
    """An option that the config does not hold: each module has its own."""

    def build(self) -> None:
        super().build()
        self.factor = random.Random(id(self)).random()

    def gated(self, x: Tensor, gate: Tensor) -> Tensor:
        return x * gate * self.factor


class DropsInEvaluation(PlainGate):
    def gated(self, x: Tensor, gate: Tensor) -> Tensor:
        return nn.functional.dropout(x, 0.5) * gate


class DrawsInTheCall(PlainGate):
    def gated(self, x: Tensor, gate: Tensor) -> Tensor:
        torch.rand(1)
        return x * gate


class KeepsTheMeanBySize(PlainGate):
    def build(self) -> None:
        super().build()
        self._means: dict[torch.Size, Tensor] = {}

    def pooled(self, x: Tensor, keep: Tensor | None) -> Tensor:
        return self._means.setdefault(x.shape, super().pooled(x, keep).detach())


class RunsItsStatistics(PlainGate):
    def build(self) -> None:
        super().build()
        self.calls = 0

    def gated(self, x: Tensor, gate: Tensor) -> Tensor:
        self.calls += 1
        return x * gate * (1 - 1e-6 * self.calls)


class SetsTheThreads(PlainGate):
    def gated(self, x: Tensor, gate: Tensor) -> Tensor:
        torch.set_num_threads(torch.get_num_threads() + 1)
        return x * gate


class Prints(PlainGate):
    def gated(self, x: Tensor, gate: Tensor) -> Tensor:
        print("gate", tuple(gate.shape))
        return x * gate


class AnswersByItsReference(PlainGate):
    def attend(self, x: Tensor, keep: Tensor | None) -> Tensor:
        return self.reference(x, keep)


class AttendsTwice(PlainGate):
    def gated(self, x: Tensor, gate: Tensor) -> Tensor:
        if x.shape[0] == 1:
            return x * gate
        return torch.cat([self.attend(row, None) for row in x.split(1)])


class MultipliesInPlace(PlainGate):
    def gated(self, x: Tensor, gate: Tensor) -> Tensor:
        with torch.no_grad():
            x.mul_(1.5).div_(1.5)
        return x * gate


class InvertsKeepInPlace(PlainGate):
    def pooled(self, x: Tensor, keep: Tensor | None) -> Tensor:
        pooled = super().pooled(x, keep)
        if keep is not None:
            keep.logical_not_()
        return pooled


class TakesStridesForGranted(PlainGate):
    def pooled(self, x: Tensor, keep: Tensor | None) -> Tensor:
        if keep is not None:
            return super().pooled(x, keep)
        count = x[0, 0].numel()
        return x.as_strided((*x.shape[:2], count), (x.shape[1] * count, count, 1)).mean(2)


class ForgetsTheFormat(PlainGate):
    def gated(self, x: Tensor, gate: Tensor) -> Tensor:
        return (x * gate).contiguous()


class _TimesGate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gate: Tensor) -> Tensor:
        ctx.save_for_backward(x, gate)
        return x * gate

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, gate = ctx.saved_tensors
        flat = torch.empty(x.shape, dtype=x.dtype)
        grad = grad.as_strided(flat.shape, flat.stride())
        return grad * gate, (grad * x).flatten(2).sum(2).view_as(gate)


class TakesGradientsToBeContiguous(PlainGate):
    """Right for gradients whose memory is as long as the map."""

    def gated(self, x: Tensor, gate: Tensor) -> Tensor:
        return _TimesGate.apply(x, gate)  # type: ignore[no-any-return]


class NormalisesThePooled(PlainGate):
    """By hand, over the batch: one sample deviates from nothing."""

    def pooled(self, x: Tensor, keep: Tensor | None) -> Tensor:
        means = super().pooled(x, keep)
        return (means - means.mean(0)) / means.std(0) if self.training else means


class UnpacksTwoPixels(PlainGate):
    """What it raises is a ValueError, too, and has nothing to do with training."""

    def pooled(self, x: Tensor, keep: Tensor | None) -> Tensor:
        _first, _second = x.flatten(2)[0, 0, :2]
        return super().pooled(x, keep)


class DividesByTheDeviation(PlainGate):
    def pooled(self, x: Tensor, keep: Tensor | None) -> Tensor:
        return super().pooled(x, keep) / x.flatten(2).std(2)


class HasALayerTooMany(PlainGate):
    def build(self) -> None:
        super().build()
        self.spare = nn.Linear(self.require_channels(), 1)


class HoldsNothing(PlainGate):
    def build(self) -> None:
        super().build()
        channels = self.require_channels()
        self.extra = nn.Parameter(torch.zeros(channels // 8, channels))

    def gated(self, x: Tensor, gate: Tensor) -> Tensor:
        return x * gate + 0 * self.extra.sum()


class DetachesTheGate(PlainGate):
    def gated(self, x: Tensor, gate: Tensor) -> Tensor:
        return x * gate.detach()


class _Tilted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 1.01


class TiltsTheGradient(PlainGate):
    def gated(self, x: Tensor, gate: Tensor) -> Tensor:
        return x * _Tilted.apply(gate)


class GrowsABuffer(PlainGate):
    def build(self) -> None:
        super().build()
        self.register_buffer("places", torch.zeros(1))

    def gated(self, x: Tensor, gate: Tensor) -> Tensor:
        if x[0, 0].numel() > self.places.numel():
            self.places = x.new_zeros(x[0, 0].numel())
        return x * gate


class DrawsOutsideItsState(PlainGate):
    def build(self) -> None:
        super().build()
        self.projection = torch.randn(self.require_channels(), dtype=torch.float64)

    def pooled(self, x: Tensor, keep: Tensor | None) -> Tensor:
        return super().pooled(x, keep) * self.projection.to(x.dtype)


class KeepsTheGate(PlainGate):
    """A tensor of the graph stays on the module."""

    def gated(self, x: Tensor, gate: Tensor) -> Tensor:
        self.last = gate
        return x * gate


class HoldsALambda(PlainGate):
    def build(self) -> None:
        super().build()
        self.activation = lambda x: x

    def gated(self, x: Tensor, gate: Tensor) -> Tensor:
        return x * self.activation(gate)


class KeepsATable(PlainGate):
    """Made by the first call, in whatever mode that runs."""

    def build(self) -> None:
        super().build()
        self.table: Tensor | None = None

    def gated(self, x: Tensor, gate: Tensor) -> Tensor:
        if self.table is None:
            self.table = torch.ones(x.shape[1:], dtype=x.dtype)
        return x * self.table * gate


class KeepsTheWeights(PlainGate):
    """The first call's parameters, cast once and for all."""

    def build(self) -> None:
        super().build()
        self.cast: dict[torch.dtype, Tensor] = {}

    def gated(self, x: Tensor, gate: Tensor) -> Tensor:
        bias = self.cast.setdefault(x.dtype, self.up.bias.to(x.dtype).clone())
        return x * gate * torch.sigmoid(bias.reshape(-1, *[1] * (x.dim() - 2)))


class GateInBfloat16(PlainGate):
    def gated(self, x: Tensor, gate: Tensor) -> Tensor:
        return x * (gate if x.dtype == torch.float64 else gate.bfloat16().to(x.dtype))


class RoundsTheMean(PlainGate):
    """A table of 64 levels where the type is narrow."""

    def pooled(self, x: Tensor, keep: Tensor | None) -> Tensor:
        mean = super().pooled(x, keep)
        return mean if x.dtype == torch.float64 else (mean * 8).round() / 8


class SumsInHalf(PlainGate):
    def pooled(self, x: Tensor, keep: Tensor | None) -> Tensor:
        if keep is not None:
            return super().pooled(x, keep)
        return x.flatten(2).sum(2) / x[0, 0].numel()


class CubesInHalf(PlainGate):
    def gated(self, x: Tensor, gate: Tensor) -> Tensor:
        return x * x * x * gate / (x * x).clamp(min=1e-3)


class DividesByNoPixel(PlainGate):
    def pooled(self, x: Tensor, keep: Tensor | None) -> Tensor:
        if keep is None:
            return super().pooled(x, None)
        total = x.masked_fill(~keep[:, None], 0.0).flatten(2).sum(2)
        return total / keep.flatten(1).sum(1, keepdim=True)


class TakesTheBox(PlainGate):
    """Whatever lies between the first and the last real pixel."""

    def pooled(self, x: Tensor, keep: Tensor | None) -> Tensor:
        if keep is None:
            return super().pooled(x, None)
        flat = keep.flatten(1).int()
        box = flat.cummax(1).values & flat.flip(1).cummax(1).values.flip(1)
        return super().pooled(x, box.bool().reshape(keep.shape))


RAISES = frozenset({UnpacksTwoPixels, KeepsTheGate, HoldsALambda, KeepsATable})
"""Their fault is that they raise; of all others something wrong must be seen."""

CAUGHT: tuple[tuple[type[PlainGate], str], ...] = (
    (DoublesItsOption, "check_fm_config_roundtrip"),
    (RoundsItsOption, "check_fm_config_roundtrip"),
    (ReadsAnotherPlace, "check_fm_config_roundtrip"),
    (DropsInEvaluation, "check_fm_eval_deterministic_and_rng_neutral"),
    (DrawsInTheCall, "check_fm_eval_deterministic_and_rng_neutral"),
    (KeepsTheMeanBySize, "check_fm_call_is_stateless"),
    (RunsItsStatistics, "check_fm_call_is_stateless"),
    (SetsTheThreads, "check_fm_global_state_untouched"),
    (Prints, "check_fm_global_state_untouched"),
    (AnswersByItsReference, "check_fm_backend_really_used"),
    (AttendsTwice, "check_fm_backend_really_used"),
    (MultipliesInPlace, "check_fm_inputs_not_mutated"),
    (InvertsKeepInPlace, "check_fm_inputs_not_mutated"),
    (TakesStridesForGranted, "check_fm_memory_format"),
    (ForgetsTheFormat, "check_fm_memory_format"),
    (TakesGradientsToBeContiguous, "check_fm_memory_format"),
    (NormalisesThePooled, "check_fm_batch_one_train"),
    (UnpacksTwoPixels, "check_fm_batch_one_train"),
    (DividesByTheDeviation, "check_fm_batch_one_train"),
    (HasALayerTooMany, "check_fm_parameters"),
    (HoldsNothing, "check_fm_parameters"),
    (DetachesTheGate, "check_fm_gradcheck"),
    (TiltsTheGradient, "check_fm_gradcheck"),
    (GrowsABuffer, "check_fm_state_dict_roundtrip"),
    (DrawsOutsideItsState, "check_fm_state_dict_roundtrip"),
    (KeepsTheGate, "check_fm_deepcopy_pickle_after_forward"),
    (HoldsALambda, "check_fm_deepcopy_pickle_after_forward"),
    (KeepsATable, "check_fm_inference_mode_then_train"),
    (KeepsTheWeights, "check_fm_inference_mode_then_train"),
    (GateInBfloat16, "check_fm_low_precision_error"),
    (RoundsTheMean, "check_fm_low_precision_error"),
    (SumsInHalf, "check_fm_half_range"),
    (CubesInHalf, "check_fm_half_range"),
    (DividesByNoPixel, "check_fm_keep_matches_reference"),
    (TakesTheBox, "check_fm_keep_matches_reference"),
)
