"""What attention is often computed as by mistake, each with its name and what to write instead.

Every form is computed in float64 on a tiny sample and compared: a name is a fact, not a guess.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from polyattn.testing.doors.blocks import unrescaled
from polyattn.testing.doors.causes import Cause
from polyattn.testing.doors.reference import distance, softmax_of, triangle
from polyattn.testing.doors.scales import named_scales
from polyattn.testing.tools.cases import Sample

SCORES = "scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])"
CAUSAL = (
    "keep = torch.ones(L, S, dtype=torch.bool).tril(S - L)\n"
    "scores = scores.masked_fill(~keep, -math.inf)"
)
SOFTMAX = "weights = scores.softmax(-1)"
OUT = "out = weights @ v"

Candidate = tuple[Cause, Tensor]


def candidates(sample: Sample) -> Iterator[Candidate]:
    """Wrong forms that are often met, the simplest first."""
    for flow, keep in (("full", None), ("causal", triangle(*sample.lengths))):
        yield from _scales(sample, keep)
        yield from _normalisers(sample, flow, keep)
        yield from _outputs(sample, keep)
        yield from _exchanged(sample, keep)
        yield from _reshaped(sample, keep)
        yield from _turned_weights(sample, keep)
    yield from _patterns(sample)
    for keep in (None, triangle(*sample.lengths)):
        yield from unrescaled(sample, keep)


def _scales(sample: Sample, keep: Tensor | None) -> Iterator[Candidate]:
    for told, scale in named_scales(sample).items():
        cause = Cause(name=told, write=SCORES, scale=told)
        yield cause, softmax_of(sample, keep, scale=scale)


def fitted_scale(got: Tensor, sample: Sample, tolerance: float) -> Cause | None:
    """Softmax attention with any other scale, found by searching for it."""
    best: tuple[float, float, Tensor | None] = (math.inf, 0.0, None)
    usual = sample.q.shape[3] ** -0.5
    for keep in (None, triangle(*sample.lengths)):
        for step in range(-24, 25):
            scale = usual * 2 ** (step / 3)
            error = distance(got, softmax_of(sample, keep, scale=scale))
            best = min(best, (error, scale, keep), key=lambda found: found[0])
    _, scale, keep = best
    low, high = scale * 2**-0.4, scale * 2**0.4
    for _ in range(40):
        one, two = low + (high - low) * 0.382, low + (high - low) * 0.618
        errors = [distance(got, softmax_of(sample, keep, scale=x)) for x in (one, two)]
        low, high = (low, two) if errors[0] < errors[1] else (one, high)
    scale = (low + high) / 2
    if distance(got, softmax_of(sample, keep, scale=scale)) > tolerance:
        return None
    told = (
        f"the logits are scaled by {scale:.5g}, {scale / usual:.4g} times 1/sqrt(D) = {usual:.5g}"
    )
    return Cause(name=told, write=SCORES, scale=_as_written(scale))


def _as_written(scale: float) -> float | None:
    """The number that was meant, where it is n, 1/n or 1/sqrt(n): exact, as a search is not."""
    for number in (round(scale, 4), 1 / round(1 / scale, 3), round(scale**-2) ** -0.5):
        if abs(number - scale) < 1e-5 * scale:
            return number
    return None


def _patterns(sample: Sample) -> Iterator[Candidate]:
    causal = triangle(*sample.lengths)
    told = {
        "the causal mask is strict, j < i: it hides the query's own key": causal.tril(
            sample.lengths[1] - sample.lengths[0] - 1
        ),
        "the causal mask sees one key too many, j <= i + 1": torch.ones_like(causal).tril(
            sample.lengths[1] - sample.lengths[0] + 1
        ),
        "the causal mask is transposed: it keeps j >= i": causal.mT,
        "the causal mask is inverted: it keeps j > i, what it should close": ~causal,
    }
    for name, keep in told.items():
        if keep.shape != causal.shape:
            continue
        yield Cause(name=name, write=CAUSAL), softmax_of(sample, keep)
        # A row without a key is NaN in some code, the mean of all values in other.
        yield Cause(name=name, write=CAUSAL), _filled(sample, keep)


def _filled(sample: Sample, keep: Tensor) -> Tensor:
    wide = sample.to(torch.float64)
    logits = wide.q @ wide.k.mT / math.sqrt(sample.q.shape[3])
    return logits.masked_fill(~keep, -1e12).softmax(-1) @ wide.v


def _normalisers(sample: Sample, flow: str, keep: Tensor | None) -> Iterator[Candidate]:
    wide = sample.to(torch.float64)
    logits = wide.q @ wide.k.mT * sample.q.shape[3] ** -0.5
    closed = None if keep is None else ~keep

    def shut(x: Tensor, value: float) -> Tensor:
        return x if closed is None else x.masked_fill(closed, value)

    axes = {-2: "the queries", 1: "the heads", 0: "the batch"}
    for axis, name in axes.items():
        told = f"the softmax runs over {name}, not over the keys"
        weights = shut(logits, -1e12).softmax(axis)
        yield Cause(name=told, write=SOFTMAX), shut(weights, 0) @ wide.v
    exp = shut(logits.exp(), 0)
    forms = {
        "there is no softmax: the logits themselves weigh the values": shut(logits, 0),
        "there is no softmax and no scale: the products weigh the values": shut(
            wide.q @ wide.k.mT, 0
        ),
        "the exponentials are not divided by their sum": exp,
        "the softmax takes the magnitudes of the logits": shut(logits.abs(), -1e12).softmax(-1),
        "the softmax takes the squares of the logits": shut(logits**2, -1e12).softmax(-1),
        "there is a log_softmax in place of the softmax": shut(
            shut(logits, -1e12).log_softmax(-1), 0
        ),
        "the softmax is applied twice": shut(shut(logits, -1e12).softmax(-1), -1e12).softmax(-1),
        "there is a sigmoid in place of the softmax": shut(logits.sigmoid(), 0),
        "there is a relu in place of the softmax": shut(logits.relu(), 0),
        "1 is added to the denominator of the softmax": exp / (1 + exp.sum(-1, keepdim=True)),
        "the weights are divided by their number, not by the sum of the exponentials": shut(
            logits, 0
        )
        / logits.shape[-1],
    }
    if closed is not None:
        forms |= _late(logits, closed)
    for name, weights in forms.items():
        write = f"{CAUSAL}\n{SOFTMAX}" if closed is not None else SOFTMAX
        yield Cause(name=name, write=write), weights @ wide.v


def _late(logits: Tensor, closed: Tensor) -> dict[str, Tensor]:
    """Weights whose mask comes too late, or closes nothing."""
    return {
        "the mask comes after the softmax: the rows no longer sum to one": (
            logits.softmax(-1).masked_fill(closed, 0)
        ),
        "closed logits are set to 0, which is no -inf: they still count": (
            logits.masked_fill(closed, 0).softmax(-1)
        ),
    }


def _outputs(sample: Sample, keep: Tensor | None) -> Iterator[Candidate]:
    """The right output, with something done to it."""
    wide, out = sample.to(torch.float64), softmax_of(sample, keep)
    width = out.shape[-1]
    size = math.sqrt(width)
    factors = {
        "1/sqrt(D)": 1 / size,
        "sqrt(D)": size,
        "D": width,
        "1/D": 1 / width,
        "the number of keys": sample.lengths[1],
        "1 over the number of keys": 1 / sample.lengths[1],
    }
    for name, factor in factors.items():
        yield Cause(name=f"the output is multiplied by {name}", write=OUT), out * factor
    for name, x in (("q", wide.q), ("k", wide.k), ("v", wide.v)):
        if x.shape == out.shape:
            told = f"a residual is added: the output holds {name} as well"
            yield Cause(name=told, write=OUT), out + x
    norms = {
        "layer-normalised": torch.nn.functional.layer_norm(out, (width,)),
        "divided by its root mean square": out / out.square().mean(-1, keepdim=True).sqrt(),
        "divided by its norm": out / out.norm(dim=-1, keepdim=True),
        "divided by its sum": out / out.sum(-1, keepdim=True),
        "put through a softmax again": out.softmax(-1),
    }
    for name, x in norms.items():
        yield Cause(name=f"the output is {name}", write=OUT), x
    yield Cause(name="the sign of the output is inverted", write=OUT), -out


def fitted_factor(got: Tensor, sample: Sample, tolerance: float) -> Cause | None:
    """Softmax attention times any number."""
    for keep in (None, triangle(*sample.lengths)):
        want = softmax_of(sample, keep)
        factor = float((got.double() * want).sum() / (want * want).sum())
        if factor and distance(got, want * factor) < tolerance:
            name = f"the values, or the output, are multiplied by {factor:.5g}"
            return Cause(name=name, write=OUT)
    return None


def fitted_epsilon(got: Tensor, sample: Sample, tolerance: float) -> Cause | None:
    """Softmax with something added to its denominator, found from what the rows lack.

    tolerance: relative error that the rest may have.
    """
    wide = sample.to(torch.float64)
    logits = wide.q @ wide.k.mT * sample.q.shape[3] ** -0.5
    for keep in (None, triangle(*sample.lengths)):
        want = softmax_of(sample, keep)
        shrunk = (got.double() * want).sum(-1) / (want * want).sum(-1)
        if distance(got, want * shrunk.unsqueeze(-1)) > tolerance or not bool((shrunk < 1).all()):
            continue
        masked = logits if keep is None else logits.masked_fill(~keep, -math.inf)
        tops = (
            torch.zeros(()),
            masked.amax(-1, keepdim=True),
            logits.amax(-1, keepdim=True),
            masked.amax(),
        )
        for top in tops:
            added = (masked - top).exp().sum(-1) * (1 / shrunk - 1)
            if float(added.std()) < 0.02 * float(added.mean()):
                name = f"{float(added.mean()):.2g} is added to the denominator of the softmax"
                write = f"{SOFTMAX}  # its denominator is never zero: nothing need be added"
                return Cause(name=name, write=write)
    return None


def _exchanged(sample: Sample, keep: Tensor | None) -> Iterator[Candidate]:
    """The right formula on the wrong tensors."""
    q, k, v = sample.q, sample.k, sample.v
    if not q.shape == k.shape == v.shape:
        return
    for told, (one, two, three) in {
        "keys and values are exchanged": (q, v, k),
        "queries and keys are exchanged: the scores are transposed": (k, q, v),
        "queries and values are exchanged": (v, k, q),
        "the arguments are taken in the order k, v, q": (k, v, q),
        "the arguments are taken in the order v, q, k": (v, q, k),
        "the scores are of the queries with themselves": (q, q, v),
        "the scores are of the keys with themselves": (k, k, v),
        "the queries are the values too": (q, k, q),
        "the keys are the values too": (q, k, k),
    }.items():
        write = f"{SCORES}\n{OUT}"
        yield Cause(name=told, write=write), softmax_of(sample.having(q=one, k=two, v=three), keep)


def _reshaped(sample: Sample, keep: Tensor | None) -> Iterator[Candidate]:
    """A reshape where a transpose is needed, a transpose that is missing."""
    wide = sample.to(torch.float64)
    length, width = wide.q.shape[2:]
    scale = width**-0.5
    if length == width and wide.k.shape == wide.q.shape:
        # Possible at L = D alone.
        logits = wide.q @ wide.k * scale
        logits = logits if keep is None else logits.masked_fill(~keep, -math.inf)
        told = "the keys are not transposed, q @ k: that answers at all only where L = D"
        yield Cause(name=told, write=SCORES), logits.softmax(-1) @ wide.v
    across = (
        (wide.q.mT @ wide.k * scale).softmax(-1) if sample.lengths[0] == sample.lengths[1] else None
    )
    if across is not None and keep is None:
        told = "the scores are (D, D), between channels, not (L, S), between positions"
        yield Cause(name=told, write=SCORES), wide.v @ across.mT
        yield Cause(name=told, write=SCORES), wide.v @ across
    out = softmax_of(sample, keep)
    merged = "return out  # weights @ v is (B, H, L, D) already; merge the heads outside"
    told = "the output is transposed and reshaped back: heads and positions are mixed"
    yield Cause(name=told, write=merged), out.transpose(1, 2).reshape(out.shape)
    if wide.q.shape == wide.k.shape == wide.v.shape:
        yield from _split_wrongly(sample, keep)


def _turned_weights(sample: Sample, keep: Tensor | None) -> Iterator[Candidate]:
    if sample.lengths[0] == sample.lengths[1]:
        unit = torch.eye(sample.lengths[1], dtype=torch.float64).expand(*sample.q.shape[:2], -1, -1)
        weights = softmax_of(sample.having(v=unit), keep)
        cause = Cause(name="the weights are transposed before the values are taken", write=OUT)
        yield cause, weights.mT @ sample.v.to(torch.float64)


def _split_wrongly(sample: Sample, keep: Tensor | None) -> Iterator[Candidate]:
    batch, heads, length, width = sample.q.shape
    split = "q = q.view(B, L, H, D).transpose(1, 2)  # k and v alike"

    def mixed(x: Tensor) -> Tensor:
        return x.reshape(batch, length, heads, width).transpose(1, 2)

    told = "the inputs are reshaped to other dimensions without a transpose"
    inner = softmax_of(sample.each(mixed), keep)
    yield Cause(name=told, write=split), inner.transpose(1, 2).reshape(sample.q.shape)
    yield Cause(name=told, write=split), inner

    def viewed(x: Tensor) -> Tensor:
        # In code that is given (B, L, H, D): view(B, H, L, D) in place of transpose(1, 2).
        return x.transpose(1, 2).reshape(batch, heads, length, width)

    told = "the inputs are viewed as (B, H, L, D) where they should be transposed"
    inner = softmax_of(sample.each(viewed), keep)
    yield Cause(name=told, write=split), inner.reshape(batch, length, heads, -1).transpose(1, 2)
    yield Cause(name=told, write=split), inner
