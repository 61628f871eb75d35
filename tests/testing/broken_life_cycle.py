"""Attention that works once: saved, copied, trained, shared between threads, mapped or exported."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from tests.testing.broken import NaNForEmptyRows
from tests.testing.correct import SOFTMAX, Plain
from tests.testing.correct_kinds import Tempered
from torch import Tensor, nn

from polyattn import Inputs, KeyValueState, Mask, Sizes, State, Support, kit
from polyattn.errors import ShapeError


class KeepsItsFirstScale(Tempered):
    """The first call decides once and for all; what is loaded afterwards is not heard."""

    def build(self) -> None:
        super().build()
        self._first: float | None = None

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        if self._first is None:
            self._first = float(self.temperature)
        learns = self.temperature - self.temperature.detach()
        return Plain.logits(self, q, k) * (learns + self._first)


class DrawsItsScaleWhenFirstAsked(Tempered):
    """Initialised at the first call, over what was loaded."""

    def build(self) -> None:
        super().build()
        self._fresh = True

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        if self._fresh:
            self._fresh = False
            with torch.no_grad():
                self.temperature.uniform_(1, 2)
        return super().logits(q, k)


class ParameterNeverUsed(Tempered):
    def build(self) -> None:
        super().build()
        self.offset = nn.Parameter(torch.zeros(3))


class ParameterThroughData(Tempered):
    """Another parameter learns, so that nothing raises."""

    def build(self) -> None:
        super().build()
        self.level = nn.Parameter(torch.ones(1))

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return Plain.logits(self, q, k) * self.temperature.data * self.level


class KeepsItsWeights(Plain):
    """Leaves the last weights on the module, to be looked at: a copy finds the graph on them."""

    def weights(self, logits: Tensor, keep: Tensor | None) -> Tensor:
        self.last = super().weights(logits, keep)
        return self.last


class KeepsALambda(Plain):
    def build(self) -> None:
        self._scale_of = lambda width: width**-0.5


class SharesItsParameter(Tempered):
    """A copy calls the original: a bound method is a value like any other."""

    def build(self) -> None:
        super().build()
        self._shared = Shared(self.temperature)

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return Plain.logits(self, q, k) * self._shared.value


class Shared:
    """One object, whoever copies it."""

    def __init__(self, value: Tensor) -> None:
        self.value = value

    def __deepcopy__(self, memo: object) -> Shared:
        return self


class TableOfTheFirstCall(Plain):
    """A table of logits' factors, made at the first call under whatever mode that has."""

    def build(self) -> None:
        self._table: Tensor | None = None

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        if self._table is None:
            self._table = torch.ones(1024, dtype=q.dtype) * q.shape[-1] ** -0.5
        return q @ k.mT * self._table[: k.shape[2]]


class DecidesOnceWhetherItLearns(Plain):
    """Asks at its first call whether gradients are on, and detaches ever after if not."""

    def build(self) -> None:
        self._learns: bool | None = None

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        if self._learns is None:
            self._learns = torch.is_grad_enabled()
        return super().logits(q if self._learns else q.detach(), k)


class WritesToItsBuffer(KeyValueState):
    """Appends where it lies, whatever mode that was made under."""

    def append(self, new: Any, mask: Mask, queries: Tensor) -> Any:
        held, over_all, state = super().append(new, mask, queries)
        for x in () if self._buffer is None else self._buffer.tensors.values():
            x[:, :, :1] *= 1.0
        return held, over_all, state


class BufferOfInferenceMode(Plain):
    def start(
        self, batch: int, sizes: Sizes | None, *, dtype: torch.dtype, device: torch.device
    ) -> State:
        return WritesToItsBuffer()


class SavesItsState(Plain):
    """Multiplies what the state holds by a factor that is learned: it is saved for backward."""

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, state: Any, mask: Mask, inputs: Inputs
    ) -> tuple[Tensor, State]:
        held = () if state._buffer is None else state._buffer.tensors.values()
        out, grown = super().step(q, k, v, state, mask, inputs)
        return out + sum((x * q[..., :1].sum() * 0).sum() for x in held), grown


class RefusesInOtherWords(Plain):
    """Says of its own state that it does not fit: nothing is wrong with it."""

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, state: Any, mask: Mask, inputs: Inputs
    ) -> tuple[Tensor, State]:
        if q.requires_grad:
            raise ShapeError("the state is of another shape")
        return super().step(q, k, v, state, mask, inputs)


class LengthOnTheModule(Plain):
    """Keeps the scaled queries on the module between two lines of forward."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        self.queries = q * q.shape[-1] ** -0.5
        keep = mask.keep(q.shape[2], k.shape[2], *q.shape[:2])
        k, v = self.spread(k, q.shape[1]), self.spread(v, q.shape[1])
        weights = kit.masked_softmax(self.queries @ k.mT, keep)
        return weights @ v


class OneAtATime(Plain):
    """Refuses to be called while it is being called."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        if self.__dict__.get("_busy"):
            raise RuntimeError("called while being called")
        self.__dict__["_busy"] = True
        try:
            return super().attend(q, k, v, mask, inputs)
        finally:
            self.__dict__["_busy"] = False


class LengthInTheGraph(Plain):
    """Exports one length only: the number of keys is read in Python."""

    capabilities = dataclasses.replace(Plain.capabilities, exports="dynamic")

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return super().logits(q, k) * (int(k.shape[2]) / k.shape[2])


class BranchOnAnEmptyRow(Plain):
    """Looks for empty rows in Python, where a graph cannot."""

    capabilities = dataclasses.replace(Plain.capabilities, exports="dynamic")

    def weights(self, logits: Tensor, keep: Tensor | None) -> Tensor:
        if keep is None or bool(keep.any(-1).all()):
            return logits.softmax(-1) if keep is None else super().weights(logits, keep)
        return super().weights(logits, keep)


class OtherwiseWhenExported(Plain):
    capabilities = dataclasses.replace(Plain.capabilities, exports="dynamic")

    def out(self, weights: Tensor, v: Tensor) -> Tensor:
        out = super().out(weights, v)
        return out * 1.001 if torch.compiler.is_exporting() else out


class ReadsAnElement(Plain):
    """Runs whole under no transform: one value of a tensor is read in Python."""

    def out(self, weights: Tensor, v: Tensor) -> Tensor:
        return super().out(weights, v) * (1.0 if float(v.flatten()[0]) < 1e9 else 2.0)


class _Once(torch.autograd.Function):
    """Without a rule for vmap."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> Tensor:
        return grad


class FunctionWithoutARule(Plain):
    def out(self, weights: Tensor, v: Tensor) -> Tensor:
        return _Once.apply(super().out(weights, v))


class RowsNeverWritten(Plain):
    """Writes only the rows that see a key."""

    def out(self, weights: Tensor, v: Tensor) -> Tensor:
        out = v.new_empty(*weights.shape[:3], v.shape[3])
        seen = (weights != 0).any(-1)
        out[seen] = super().out(weights, v)[seen]
        return out


class LastBlockNeverWritten(Plain):
    """Whole blocks of eight rows are written; the rest is as the memory was."""

    def out(self, weights: Tensor, v: Tensor) -> Tensor:
        whole = weights.shape[2] // 8 * 8
        out = torch.empty(*weights.shape[:3], v.shape[3], dtype=v.dtype)
        out[:, :, :whole] = super().out(weights, v)[:, :, :whole]
        return out


class _Jitter(torch.autograd.Function):
    """The identity, whose gradient depends on how often it was taken."""

    count = 0

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> Tensor:
        _Jitter.count += 1
        return grad * (1 + 1e-15 * (_Jitter.count % 7))


class GradientsByTurns(Plain):
    def out(self, weights: Tensor, v: Tensor) -> Tensor:
        return _Jitter.apply(super().out(weights, v))


class _Drawn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> Tensor:
        return grad * (1 + 1e-13 * torch.rand(()).to(grad.dtype))


class GradientsDrawn(Plain):
    """Rounds its gradients at random."""

    def out(self, weights: Tensor, v: Tensor) -> Tensor:
        return _Drawn.apply(super().out(weights, v))


class WritesOutTheWeights(Plain):
    capabilities = dataclasses.replace(Plain.capabilities, linear_memory=True)


class TableOfPairs(Plain):
    """Sums over blocks, but for a table of which keys are seen."""

    capabilities = dataclasses.replace(
        SOFTMAX, linear_memory=True, masks=frozenset(), compiles="no", state="none"
    )

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        k, v = self.spread(k, q.shape[1]), self.spread(v, q.shape[1])
        seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)
        rows = [
            (q[:, :, i : i + 64] @ k.mT * q.shape[-1] ** -0.5)
            .masked_fill(~seen[i : i + 64], -torch.inf)
            .softmax(-1)
            @ v
            for i in range(0, q.shape[2], 64)
        ]
        return torch.cat(rows, dim=2)


class BatchOfSixteenBits(Plain):
    """Counts samples times heads times rows in too small an integer."""

    def out(self, weights: Tensor, v: Tensor) -> Tensor:
        out = super().out(weights, v)
        index = torch.arange(out.shape[:3].numel()).to(torch.int16).long()
        return out.flatten(0, 2)[index.clamp(min=0)].reshape(out.shape)


class GridOfThousands(Plain):
    """A grid has a largest size, and what lies beyond it is not computed."""

    def out(self, weights: Tensor, v: Tensor) -> Tensor:
        out = super().out(weights, v)
        inside = torch.arange(out.shape[0]) < 4000
        return out * inside[:, None, None, None]


class DropsTangents(Plain):
    """Forward mode goes through, but for what comes in by the values."""

    capabilities = dataclasses.replace(
        Plain.capabilities, devices={"cpu": Support(double_backward=True, forward_ad=True)}
    )

    def out(self, weights: Tensor, v: Tensor) -> Tensor:
        tangents = torch.autograd.forward_ad
        return super().out(weights, tangents.unpack_dual(v).primal)


class ForwardModeWithoutAFormula(Plain):
    """Claims forward mode for an operator of its own that has none."""

    capabilities = DropsTangents.capabilities

    def out(self, weights: Tensor, v: Tensor) -> Tensor:
        return _Once.apply(super().out(weights, v))


class AnswersTangents(Plain):
    """Claims no forward mode, and answers as if nothing had been asked."""

    def refusals(self, call: Any) -> Any:
        return super().refusals(dataclasses.replace(call, forward_ad=None))


RAISES = frozenset(
    {
        KeepsItsWeights,
        KeepsALambda,
        TableOfTheFirstCall,
        BufferOfInferenceMode,
        SavesItsState,
        RefusesInOtherWords,
        OneAtATime,
        LengthInTheGraph,
        BranchOnAnEmptyRow,
        ReadsAnElement,
        FunctionWithoutARule,
        ForwardModeWithoutAFormula,
    }
)
"""Their fault is that they raise; of all others something wrong must be seen."""

CAUGHT: tuple[tuple[type[Plain], str], ...] = (
    (KeepsItsFirstScale, "check_state_dict_roundtrip"),
    (DrawsItsScaleWhenFirstAsked, "check_state_dict_roundtrip"),
    (ParameterNeverUsed, "check_all_parameters_get_grad"),
    (ParameterThroughData, "check_all_parameters_get_grad"),
    (KeepsItsWeights, "check_deepcopy_pickle_after_forward"),
    (KeepsALambda, "check_deepcopy_pickle_after_forward"),
    (SharesItsParameter, "check_deepcopy_pickle_after_forward"),
    (TableOfTheFirstCall, "check_inference_mode_then_train"),
    (DecidesOnceWhetherItLearns, "check_inference_mode_then_train"),
    (BufferOfInferenceMode, "check_state_of_inference_mode"),
    (SavesItsState, "check_state_of_inference_mode"),
    (RefusesInOtherWords, "check_state_of_inference_mode"),
    (LengthOnTheModule, "check_threads"),
    (OneAtATime, "check_threads"),
    (LengthInTheGraph, "check_export"),
    (BranchOnAnEmptyRow, "check_export"),
    (OtherwiseWhenExported, "check_export"),
    (ReadsAnElement, "check_vmap"),
    (FunctionWithoutARule, "check_vmap"),
    (RowsNeverWritten, "check_no_uninitialised_output"),
    (LastBlockNeverWritten, "check_no_uninitialised_output"),
    (NaNForEmptyRows, "check_no_uninitialised_output"),
    (GradientsByTurns, "check_deterministic_backward"),
    (GradientsDrawn, "check_deterministic_backward"),
    (WritesOutTheWeights, "check_no_quadratic_memory"),
    (TableOfPairs, "check_no_quadratic_memory"),
    (BatchOfSixteenBits, "check_large_sizes"),
    (GridOfThousands, "check_large_sizes"),
    (DropsTangents, "check_forward_mode"),
    (ForwardModeWithoutAFormula, "check_forward_mode"),
    (AnswersTangents, "check_forward_mode"),
)
"""Each with the check that must catch it, by name."""
