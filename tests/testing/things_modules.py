"""Modules over (B, S, E) as people write them, right and wrong, none with polyattn in mind."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, HEADS = 16, 4


class Attention(nn.Module):
    """Right: self-attention with projections and a padding mask, True where there is padding."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x, key_padding_mask=None, need_weights=False):
        q, k, v = (self.split(t) for t in self.qkv(x).chunk(3, -1))
        weights = self.weights(q, k, key_padding_mask)
        out = self.merge(self.dropout(weights) @ v)
        out = self.out(out)
        return (out, weights) if need_weights else out

    def split(self, x):
        return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)

    def merge(self, x):
        return x.transpose(1, 2).flatten(2)

    def weights(self, q, k, padding):
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        closed = self.closed(q, k, padding)
        if closed is None:
            return scores.softmax(-1)
        empty = closed.all(-1, keepdim=True)
        return scores.masked_fill(closed & ~empty, -math.inf).softmax(-1) * ~empty

    def closed(self, q, k, padding):
        return None if padding is None else padding[:, None, None]


class Causal(Attention):
    """Right: no position hears a later one."""

    def closed(self, q, k, padding):
        later = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(1)
        return later if padding is None else later | padding[:, None, None]


class SequenceFirst(nn.Module):
    """Right: torch's own, the sequence first; gives its weights as well."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS)

    def forward(self, x):
        return self.attention(x, x, x)


class Cross(Attention):
    """Right: x attends to a context, to itself where there is none."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        del self.qkv

    def forward(self, x, context=None):
        keys, values = self.kv(x if context is None else context).chunk(2, -1)
        q, k, v = self.split(self.q(x)), self.split(keys), self.split(values)
        return self.out(self.merge(self.weights(q, k, None) @ v))


class Squeezes(Attention):
    def forward(self, x, key_padding_mask=None):
        return super().forward(x, key_padding_mask).squeeze()


class AnswersInFloat32(Attention):
    def forward(self, x, key_padding_mask=None):
        return super().forward(x, key_padding_mask).float()


class DropsInEvaluation(Attention):
    def merge(self, x):
        return super().merge(F.dropout(x, 0.1))


class DrawsInTheCall(Attention):
    def merge(self, x):
        torch.rand(1)
        return super().merge(x)


class ShiftsItsInput(Attention):
    def forward(self, x, key_padding_mask=None):
        with torch.no_grad():
            x += 0.1
        return super().forward(x, key_padding_mask)


class _ScalesWhatItWasGiven(torch.autograd.Function):
    """The values stay as they are; its backward makes room in what it was given."""

    @staticmethod
    def forward(ctx, x):
        ctx.given = x
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        ctx.given.mul_(0.5)
        return grad


class ScalesItsInputInBackward(Attention):
    def forward(self, x, key_padding_mask=None):
        return super().forward(_ScalesWhatItWasGiven.apply(x), key_padding_mask)


class InvertsItsMask(Attention):
    def closed(self, q, k, padding):
        closed = super().closed(q, k, None if padding is None else padding.clone())
        if padding is not None:
            padding.logical_not_()
        return closed


class Prints(Attention):
    def merge(self, x):
        print("merging", x.shape)
        return super().merge(x)


class SetsTheThreads(Attention):
    def merge(self, x):
        torch.set_num_threads(torch.get_num_threads() + 1)
        return super().merge(x)


class KeepsMasksByLength(Attention):
    def __init__(self) -> None:
        super().__init__()
        self.known: dict[int, Tensor | None] = {}

    def closed(self, q, k, padding):
        return self.known.setdefault(k.shape[2], super().closed(q, k, padding))


class KeepsTheFirstLevel(Attention):
    """By length: of the first call of each."""

    def __init__(self) -> None:
        super().__init__()
        self.levels: dict[int, Tensor] = {}

    def weights(self, q, k, padding):
        level = self.levels.setdefault(k.shape[2], k.detach().mean(0, keepdim=True))
        return super().weights(q, k + level, padding)


class CountsItsCalls(Attention):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def merge(self, x):
        self.calls += 1
        return super().merge(x) * (1 + 1e-4 * self.calls)


class MixesTheBatch(Attention):
    """A batch that is taken for positions."""

    def forward(self, x, key_padding_mask=None):
        return super().forward(x) + 0.1 * x.mean(0, keepdim=True)


class LevelOfTheBatch(Attention):
    def weights(self, q, k, padding):
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        odds = (scores - scores.max()).exp()
        return odds / (odds.sum(-1, keepdim=True) + 1e-3)


class SqueezesOnePosition(Attention):
    def merge(self, x):
        return super().merge(x).squeeze(1)


class NormalisesOverPositions(Attention):
    def merge(self, x):
        out = super().merge(x)
        return out / out.std(1, keepdim=True)


class Views(Attention):
    def forward(self, x, key_padding_mask=None):
        return super().forward(x.view(-1).view(x.shape), key_padding_mask)


class ReadsMemoryInOrder(Attention):
    def forward(self, x, key_padding_mask=None):
        length, width = x.shape[1:]
        x = x.as_strided(x.shape, (length * width, width, 1))
        return super().forward(x, key_padding_mask)


class TableLeftBehind(Attention):
    def __init__(self) -> None:
        super().__init__()
        self.turn = torch.eye(WIDTH)

    def merge(self, x):
        merged = super().merge(x)
        return (merged.to(self.turn.dtype) @ self.turn).to(merged.dtype)


class RoundsInside(Attention):
    def merge(self, x):
        merged = super().merge(x)
        return merged.float().to(merged.dtype)


class StrictlyLeaky(Causal):
    """Causal but for one position ahead in every fourth row."""

    def closed(self, q, k, padding):
        block = torch.arange(q.shape[2]) // 4
        later = block[None] > block[:, None]
        return later if padding is None else later | padding[:, None, None]


class LeaksTheMean(Causal):
    def forward(self, x, key_padding_mask=None):
        return super().forward(x, key_padding_mask) + 1e-5 * x.mean(1, keepdim=True)


class LeaksWhenLoud(Causal):
    def forward(self, x, key_padding_mask=None):
        loud = x.detach().abs().amax((1, 2), keepdim=True)
        return super().forward(x, key_padding_mask) + (loud - 8).clamp(min=0)


class LeaksItsLastGradient(Causal):
    """The value stays as it is, the gradient reaches the last position."""

    def forward(self, x, key_padding_mask=None):
        last = x[:, -1:]
        return super().forward(x, key_padding_mask) + (last - last.detach())


class FirstRowOfZeros(Causal):
    def forward(self, x, key_padding_mask=None):
        out = super().forward(x, key_padding_mask)
        return torch.cat([torch.zeros_like(out[:, :1]), out[:, 1:]], 1)


class ForgetsToAdd(Causal):
    """The branch is computed, and the input is what it was not added to."""

    def forward(self, x, key_padding_mask=None):
        return super().forward(x, key_padding_mask) * 0


class DetachesItsInput(Causal):
    def forward(self, x, key_padding_mask=None):
        return super().forward(x.detach(), key_padding_mask)


class LeaksBehindAZeroProjection(Attention):
    """Not causal, though it is meant to be; at first nothing of it shows."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.zeros_(self.out.weight)

    def closed(self, q, k, padding):
        return torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(2)


class LeaksBehindAGate(Causal):
    """What comes next is added, times one in a million, as the scales of layers begin."""

    def __init__(self) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((WIDTH,), 1e-6))

    def forward(self, x, key_padding_mask=None):
        out = super().forward(x, key_padding_mask)
        return out + self.gamma * F.pad(x[:, 1:], (0, 0, 0, 1))


class ScalesByLength(Causal):
    def merge(self, x):
        return super().merge(x) / math.log(2 + x.shape[2])


class CountsFromTheEnd(Causal):
    def forward(self, x, key_padding_mask=None):
        place = torch.arange(x.shape[1]).flip(0).to(x.dtype)
        return super().forward(x + place[:, None] * 0.1, key_padding_mask)


class _Filled(Attention):
    """Causal by a number in place of -inf; ``small``: the spread of its projections, if given."""

    fill, added, small = -30.0, False, 0.0

    def __init__(self) -> None:
        super().__init__()
        if self.small:
            nn.init.normal_(self.qkv.weight, std=self.small)

    def weights(self, q, k, padding):
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        later = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(1)
        if self.added:
            return (scores + self.fill * later).softmax(-1)
        return scores.masked_fill(later, self.fill).softmax(-1)

    def forward(self, x):
        return super().forward(x)


class LaterOfMinusThirty(_Filled):
    pass


class LaterOfMinusHundred(_Filled):
    fill = -100.0


class LaterOfMinusTenThousand(_Filled):
    fill, small = -1e4, 0.02


class AddsMinusTenThousandToLater(_Filled):
    fill, added, small = -1e4, True, 0.02


class LaterOfMinusABillion(_Filled):
    """Right: no logits of these projections come near."""

    fill = -1e9


class PaddingOfMinusTen(Attention):
    def weights(self, q, k, padding):
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        if padding is not None:
            scores = scores - 10.0 * padding[:, None, None].to(q.dtype)
        return scores.softmax(-1)


class PaddingOfMinusHundred(Attention):
    """Right until the real keys have logits below -100: that is no -inf."""

    def weights(self, q, k, padding):
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        if padding is not None:
            scores = scores.masked_fill(padding[:, None, None], -100.0)
        return scores.softmax(-1)


class AddsMinusHundred(Attention):
    """Right until padding has logits above 100."""

    def weights(self, q, k, padding):
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        if padding is not None:
            scores = scores - 100.0 * padding[:, None, None].to(q.dtype)
        return scores.softmax(-1)


class MergesWithoutTranspose(Attention):
    def merge(self, x):
        return x.reshape(len(x), x.shape[2], -1)


class MergesBehindAGateOfZero(MergesWithoutTranspose):
    """Heads are merged wrongly, and multiplied by a gate of zero."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(()))

    def forward(self, x, key_padding_mask=None):
        return x + self.gate * super().forward(x, key_padding_mask)


class MergesWithoutPadding(MergesWithoutTranspose):
    """The same fault, where no padding is taken that would show it."""

    def forward(self, x):
        return super().forward(x)


class SplitsByView(Attention):
    """The heads are split by a view where a transpose is needed, and no padding is taken."""

    def forward(self, x):
        return super().forward(x)

    def split(self, x):
        return x.reshape(len(x), HEADS, x.shape[1], -1)


class IgnoresItsMask(Attention):
    def forward(self, x, mask=None):
        return super().forward(x)


class IsComplex(nn.Linear):
    """Moved to a real dtype it would answer."""

    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH, dtype=torch.complex64)


class AttendsOverTheBatch(Attention):
    """Written for the sequence first, and not told so."""

    def forward(self, x):
        return super().forward(x.transpose(0, 1)).transpose(0, 1)


class Positioned(Attention):
    """Right, and knows the order of positions from a table."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(32, WIDTH))

    def forward(self, x):
        return super().forward(x + self.table[: x.shape[1]])


class MeanOverPadding(Attention):
    def forward(self, x, key_padding_mask=None):
        return super().forward(x, key_padding_mask) + 1e-3 * x.mean(1, keepdim=True)


class NaNForEmptyRows(Attention):
    def weights(self, q, k, padding):
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        closed = self.closed(q, k, padding)
        if closed is not None:
            scores = scores.masked_fill(closed, -math.inf)
        return scores.softmax(-1)


class CleansItsOutput(NaNForEmptyRows):
    def merge(self, x):
        return super().merge(x).nan_to_num()


class DividesByTheRealNorm(Attention):
    """The norm of the real positions: where there are none its gradient is NaN, chosen or not."""

    def forward(self, x, key_padding_mask=None, need_weights=False):
        real = x if key_padding_mask is None else x * ~key_padding_mask[..., None]
        norm = real.square().sum((1, 2), keepdim=True).sqrt()
        x = x / torch.where(norm > 0, norm, 1.0)
        return super().forward(x, key_padding_mask, need_weights)


class UnusedLayer(Attention):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)


class ForgetsItsLastExpert(Attention):
    """The last expert is never chosen, whatever comes in."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 4)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x, key_padding_mask=None):
        x = super().forward(x, key_padding_mask)
        odds, chosen = self.router(x).softmax(-1)[..., :-1].max(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            if (own := chosen == number).any():
                out[own] = expert(x[own]) * odds[own][:, None]
        return x + out


class DetachedOutput(Attention):
    def forward(self, x, key_padding_mask=None):
        out = F.linear(
            self.merge(self.weights(*self.qk(x), key_padding_mask) @ self.v(x)),
            self.out.weight.detach(),
            self.out.bias.detach(),
        )
        return out

    def qk(self, x):
        q, k, _ = (self.split(t) for t in self.qkv(x).chunk(3, -1))
        return q, k

    def v(self, x):
        return self.split(self.qkv(x).chunk(3, -1)[2])


class GrowsABuffer(Attention):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))

    def merge(self, x):
        if x.shape[2] > len(self.seen):
            self.seen = x.new_zeros(x.shape[2])
        return super().merge(x)


class DrawsOutsideItsState(Attention):
    def __init__(self) -> None:
        super().__init__()
        self.level = float(torch.rand(()))

    def merge(self, x):
        return super().merge(x) * self.level


class KeepsItsWeights(Attention):
    def weights(self, q, k, padding):
        self.last = super().weights(q, k, padding)
        return self.last


class HoldsALambda(Attention):
    def __init__(self) -> None:
        super().__init__()
        self.activation = lambda x: x

    def merge(self, x):
        return self.activation(super().merge(x))


class _Shared:
    """One object, whoever copies it."""

    def __init__(self, value):
        self.value = value

    def __deepcopy__(self, memo):
        return self


class SharesItsBuffer(Attention):
    """A copy reads the original's buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("level", torch.zeros(WIDTH))
        self.held = _Shared(self._buffers)

    def merge(self, x):
        return super().merge(x) + self.held.value["level"]


class KeepsATable(Attention):
    def __init__(self) -> None:
        super().__init__()
        self.table: Tensor | None = None

    def merge(self, x):
        if self.table is None:
            self.table = torch.ones(WIDTH, dtype=x.dtype)
        return super().merge(x) * self.table


class KeepsTheProduct(Attention):
    """Something made of the parameters in the first call, in whatever mode."""

    def __init__(self) -> None:
        super().__init__()
        self.product: Tensor | None = None

    def merge(self, x):
        if self.product is None:
            self.product = self.out.weight.tanh()
        return super().merge(x) @ self.product


class UnmaskedInTraining(Attention):
    def merge(self, x):
        return super().merge(x) if self.training else super().merge(x).tanh()


class ScaledInTraining(Attention):
    def weights(self, q, k, padding):
        return super().weights(q * 0.5 if self.training else q, k, padding)


class ScaledWhereWeightsAreWanted(Attention):
    def forward(self, x, key_padding_mask=None, need_weights=False):
        out = super().forward(x, key_padding_mask)
        return (out * 0.5, None) if need_weights else out


class WeightsFirst(Attention):
    def forward(self, x, key_padding_mask=None, need_weights=False):
        out = super().forward(x, key_padding_mask)
        return (torch.zeros_like(out), out) if need_weights else out


class _Tilted(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * 1.01


class TiltsTheGradient(Attention):
    def merge(self, x):
        return _Tilted.apply(super().merge(x))


class TiltsBesideItsX(Attention):
    """The gradient of the input is wrong, and that of a parameter called x is right."""

    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x, key_padding_mask=None, need_weights=False):
        return super().forward(_Tilted.apply(x) * self.x, key_padding_mask, need_weights)


class TiltsItsTemperature(Attention):
    """The gradient of one number, which has no dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(1.5))

    def weights(self, q, k, padding):
        return super().weights(q * _Tilted.apply(self.temperature), k, padding)


class DetachesTheKeys(Attention):
    def weights(self, q, k, padding):
        return super().weights(q, k.detach(), padding)


class TernaryWeights(Attention):
    """Right, as quantised training is: the gradient goes straight through a rounding."""

    def forward(self, x, key_padding_mask=None, need_weights=False):
        weight = self.qkv.weight
        scale = weight.abs().mean()
        rounded = (weight / scale).round().clamp(-1, 1) * scale
        weight = weight + (rounded - weight).detach()
        q, k, v = (self.split(t) for t in F.linear(x, weight, self.qkv.bias).chunk(3, -1))
        out = self.out(self.merge(self.dropout(self.weights(q, k, key_padding_mask)) @ v))
        return out


class RoundedInputs(Attention):
    """Right in the same way, for what comes in: eight bits by the largest of each position."""

    def forward(self, x, key_padding_mask=None):
        scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-5) / 127
        return super().forward(x + ((x / scale).round() * scale - x).detach(), key_padding_mask)


class TiltsBehindTopK(Attention):
    """It jumps where others are the greatest, and is wrong between the jumps."""

    def weights(self, q, k, padding):
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        least = scores.topk(min(2, k.shape[2]), -1).values[..., -1:]
        return _Tilted.apply(scores.masked_fill(scores < least, -math.inf).softmax(-1))


class TiltsBehindTernary(TernaryWeights):
    """Straight through for one parameter; the gradients of the others are wrong."""

    def merge(self, x):
        return _Tilted.apply(super().merge(x))


class KeysOfX(Cross):
    """Of the context only the values are taken, cut to the length of x."""

    def forward(self, x, context=None):
        context = x if context is None else context
        keys, values = self.kv(x).chunk(2, -1)[0], self.kv(context).chunk(2, -1)[1]
        q, k, v = self.split(self.q(x)), self.split(keys), self.split(values)
        return self.out(self.merge(self.weights(q, k, None) @ v[:, :, : x.shape[1]]))


class ContextOfTheFirst(Cross):
    def forward(self, x, context=None):
        return super().forward(x, None if context is None else context[:1].expand_as(context))


class ReturnsNothing(Attention):
    def forward(self, x, key_padding_mask=None):
        super().forward(x, key_padding_mask)


class IsNaN(Attention):
    def merge(self, x):
        return super().merge(x) * math.nan


class Raises(nn.Module):
    def forward(self, x):
        raise RuntimeError("CUDA is not here")


class Hangs(nn.Module):
    def forward(self, x):
        while True:
            pass


class NeedsArguments(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.proj = nn.Linear(width, width)

    def forward(self, x):
        return self.proj(x)


class Deaf(nn.Module):
    """Right, and no attention: each position goes its own way."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)

    def forward(self, x):
        return self.down(self.up(x).relu())


class OddWidth(nn.Module):
    """A width of 24, which is written nowhere but in the code."""

    def forward(self, x):
        if x.shape[-1] != 24:
            raise ValueError("expected a width of 24")
        return x.cumsum(1)


GOOD = (Attention, Causal, LaterOfMinusABillion, SequenceFirst, Cross)

RAISES = frozenset({Views, KeepsItsWeights, HoldsALambda, KeepsATable, KeepsTheProduct})
"""Their fault is that they raise; of all others something wrong must be seen."""

CAUGHT = (
    (Squeezes, "check_module_output"),
    (ReturnsNothing, "check_module_output"),
    (DropsInEvaluation, "check_module_eval_deterministic"),
    (DrawsInTheCall, "check_module_eval_deterministic"),
    (ShiftsItsInput, "check_module_inputs_not_mutated"),
    (ScalesItsInputInBackward, "check_module_inputs_not_mutated"),
    (InvertsItsMask, "check_module_inputs_not_mutated"),
    (Prints, "check_module_global_state_untouched"),
    (SetsTheThreads, "check_module_global_state_untouched"),
    (KeepsMasksByLength, "check_module_call_is_stateless"),
    (KeepsTheFirstLevel, "check_module_call_is_stateless"),
    (CountsItsCalls, "check_module_call_is_stateless"),
    (MixesTheBatch, "check_module_batch_independence"),
    (LevelOfTheBatch, "check_module_batch_independence"),
    (SqueezesOnePosition, "check_module_length_one"),
    (NormalisesOverPositions, "check_module_length_one"),
    (Views, "check_module_noncontiguous"),
    (ReadsMemoryInOrder, "check_module_noncontiguous"),
    (TableLeftBehind, "check_module_double_precision"),
    (AnswersInFloat32, "check_module_double_precision"),
    (RoundsInside, "check_module_double_precision"),
    (StrictlyLeaky, "check_module_causality_by_perturbation"),
    (LeaksWhenLoud, "check_module_causality_by_perturbation"),
    (LaterOfMinusThirty, "check_module_causality_by_perturbation"),
    (LaterOfMinusHundred, "check_module_causality_by_perturbation"),
    (LaterOfMinusTenThousand, "check_module_causality_by_perturbation"),
    (AddsMinusTenThousandToLater, "check_module_causality_by_perturbation"),
    (StrictlyLeaky, "check_module_causality_by_gradient"),
    (LeaksItsLastGradient, "check_module_causality_by_gradient"),
    (DetachesItsInput, "check_module_causality_by_gradient"),
    (LeaksBehindAZeroProjection, "check_module_causality_by_perturbation"),
    (LeaksBehindAGate, "check_module_causality_by_perturbation"),
    (FirstRowOfZeros, "check_module_hears"),
    (ForgetsToAdd, "check_module_hears"),
    (ScalesByLength, "check_module_prefix_consistency"),
    (CountsFromTheEnd, "check_module_prefix_consistency"),
    (PaddingOfMinusTen, "check_module_padding_equals_truncation"),
    (PaddingOfMinusHundred, "check_module_padding_equals_truncation"),
    (AddsMinusHundred, "check_module_padding_equals_truncation"),
    (MergesWithoutTranspose, "check_module_padding_equals_truncation"),
    (MergesBehindAGateOfZero, "check_module_padding_equals_truncation"),
    (MeanOverPadding, "check_module_padding_equals_truncation"),
    (NaNForEmptyRows, "check_module_fully_masked_rows"),
    (CleansItsOutput, "check_module_fully_masked_rows"),
    (DividesByTheRealNorm, "check_module_fully_masked_rows"),
    (KeysOfX, "check_module_context"),
    (ContextOfTheFirst, "check_module_context"),
    (UnusedLayer, "check_module_parameters_get_grad"),
    (DetachedOutput, "check_module_parameters_get_grad"),
    (ForgetsItsLastExpert, "check_module_parameters_get_grad"),
    (GrowsABuffer, "check_module_state_dict_roundtrip"),
    (DrawsOutsideItsState, "check_module_state_dict_roundtrip"),
    (KeepsItsWeights, "check_module_deepcopy_pickle"),
    (HoldsALambda, "check_module_deepcopy_pickle"),
    (SharesItsBuffer, "check_module_deepcopy_pickle"),
    (KeepsATable, "check_module_inference_mode_then_train"),
    (KeepsTheProduct, "check_module_inference_mode_then_train"),
    (UnmaskedInTraining, "check_module_train_equals_eval"),
    (ScaledInTraining, "check_module_train_equals_eval"),
    (ScaledWhereWeightsAreWanted, "check_module_weights_change_nothing"),
    (WeightsFirst, "check_module_weights_change_nothing"),
    (TiltsTheGradient, "check_module_gradcheck"),
    (TiltsBesideItsX, "check_module_gradcheck"),
    (TiltsItsTemperature, "check_module_gradcheck"),
    (TiltsBehindTopK, "check_module_gradcheck"),
    (TiltsBehindTernary, "check_module_gradcheck"),
    (TernaryWeights, "check_module_nothing_straight_through"),
    (RoundedInputs, "check_module_nothing_straight_through"),
    (DetachesTheKeys, "check_module_gradcheck"),
)
"""(class, name of the check that must catch it)."""
