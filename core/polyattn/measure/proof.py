"""No timing without a correct result: a variant is compared with its definition at the very shape
that is about to be timed, output and each gradient, under the causal mask.

Up to 1,024 tokens every query row is compared. Above, 256 sampled rows: causally, a block of rows
that ends at position e is the last rows of a sequence of e keys, so the definition answers it
alone. Where it does not (the rows of a variant may not stand alone, which is tried at a small
length first), the whole is compared at the largest length whose definition fits in 1 GB.

The output is compared twice, since another implementation may answer where no gradients are wanted.

A variant may differ from its definition in float64 by a few times what the definition itself loses
in float32, and by a few units in the last place of the largest value.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from polyattn.contract import SequenceAttention
from polyattn.errors import PolyattnError
from polyattn.mask import Mask
from polyattn.measure.memory import peak_bytes
from polyattn.measure.results import Proof

WHOLE_UP_TO = 1024
SAMPLED_ROWS = 256
_BLOCK = 32
_TRIAL = 160
_MEMORY = 10**9

_LOSS_OUTPUT, _LOSS_GRADIENT = 4.0, 8.0
_UNITS_OUTPUT, _UNITS_GRADIENT = 16.0, 32.0

Block = tuple[int, int]
"""Query rows from the first to before the second, which is also the number of keys they see."""


@dataclass(frozen=True)
class Tensors:
    """What one call is given. leaves: q (B, H, N, D), k, v and the side inputs, by name."""

    leaves: Mapping[str, Tensor]

    def to(self, dtype: torch.dtype) -> Tensors:
        return Tensors({n: x.detach().to(dtype).requires_grad_() for n, x in self.leaves.items()})

    def until(self, length: int) -> Tensors:
        return Tensors({n: x.detach()[:, :, :length] for n, x in self.leaves.items()})

    @property
    def qkv(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.leaves["q"], self.leaves["k"], self.leaves["v"]

    @property
    def inputs(self) -> dict[str, Tensor]:
        return {n: x for n, x in self.leaves.items() if n not in ("q", "k", "v")}

    @property
    def length(self) -> int:
        return self.leaves["q"].shape[2]


def random_tensors(
    variant: SequenceAttention, heads: int, head_dim: int, length: int, seed: int
) -> Tensors:
    """Standard normal q, k, v (1, H, N, D) and side inputs of the variant, float32."""
    generator = torch.Generator().manual_seed(seed)
    widths = {"q": head_dim, "k": head_dim, "v": head_dim}
    for name, size in type(variant).side_inputs.items():
        widths[name] = head_dim if isinstance(size.width, str) else size.width
    shape = (1, heads, length)
    return Tensors({n: torch.randn(*shape, w, generator=generator) for n, w in widths.items()})


def prove(variant: SequenceAttention, tensors: Tensors, seed: int = 0) -> Proof:
    """Compare the variant with its definition on these tensors, forward and backward.

    Whatever the variant itself raises is raised: a refusal is not a wrong result.
    """
    length = tensors.length
    blocks: Sequence[Block] = [(0, length)]
    if length > WHOLE_UP_TO:
        if rows_stand_alone(variant, tensors):
            blocks = sample_blocks(length, seed)
        else:
            length = min(length, _largest_length(variant, tensors))
            tensors, blocks = tensors.until(length), [(0, length)]
    cotangent = torch.randn(
        tensors.leaves["v"].shape, generator=torch.Generator().manual_seed(seed + 1)
    )
    double = copy.deepcopy(variant).double()
    exact = _by_definition(double, tensors.to(torch.float64), blocks, cotangent)
    plain = _by_definition(variant, tensors.to(torch.float32), blocks, cotangent)
    found = _by_variant(variant, tensors.to(torch.float32), blocks, cotangent)
    return _judge(exact, plain, found, length, sum(end - start for start, end in blocks))


def sample_blocks(length: int, seed: int) -> list[Block]:
    """Blocks of 32 query rows, 256 in all: the first, the last, and others drawn between."""
    generator = torch.Generator().manual_seed(seed)
    slots = length // _BLOCK
    drawn = torch.randperm(slots - 2, generator=generator)[: SAMPLED_ROWS // _BLOCK - 2] + 1
    starts = sorted({0, length - _BLOCK, *(int(slot) * _BLOCK for slot in drawn)})
    return [(start, start + _BLOCK) for start in starts]


def rows_stand_alone(variant: SequenceAttention, tensors: Tensors) -> bool:
    """Whether the definition of a few last rows is what those rows are in the whole."""
    double = copy.deepcopy(variant).double()
    small = tensors.until(_TRIAL).to(torch.float64)
    start, end = _TRIAL // 2, _TRIAL // 2 + _BLOCK
    with torch.no_grad():
        try:
            whole = _definition(double, small, (0, _TRIAL))[:, :, start:end]
            alone = _definition(double, small, (start, end))
        except (PolyattnError, RuntimeError, IndexError):
            return False
    return whole.shape == alone.shape and torch.allclose(whole, alone, rtol=1e-9, atol=1e-9)


def _largest_length(variant: SequenceAttention, tensors: Tensors) -> int:
    """The longest beginning whose definition, with its gradients, fits in memory."""
    small = tensors.until(2 * _TRIAL)
    blocks, cotangent = [(0, 2 * _TRIAL)], torch.ones_like(small.leaves["v"])
    double = copy.deepcopy(variant).double()
    used = peak_bytes(lambda: _by_definition(double, small.to(torch.float64), blocks, cotangent))
    longest = int(2 * _TRIAL * math.sqrt(_MEMORY / used))
    return longest - longest % variant.claims.lengths.multiple_of


def _definition(variant: SequenceAttention, tensors: Tensors, block: Block) -> Tensor:
    start, end = block
    q, k, v = tensors.qkv
    inputs = {name: x[:, :, :end] for name, x in tensors.inputs.items()}
    return variant.reference(
        q[:, :, start:end], k[:, :, :end], v[:, :, :end], Mask.causal(), inputs
    )


def _by_definition(
    variant: SequenceAttention, tensors: Tensors, blocks: Sequence[Block], cotangent: Tensor
) -> dict[str, Tensor]:
    outputs = []
    for start, end in blocks:
        output = _definition(variant, tensors, (start, end))
        output.backward(cotangent[:, :, start:end].to(output.dtype))  # type: ignore[no-untyped-call]
        outputs.append(output.detach())
    return _results(torch.cat(outputs, dim=2), tensors)


def _by_variant(
    variant: SequenceAttention, tensors: Tensors, blocks: Sequence[Block], cotangent: Tensor
) -> dict[str, Tensor]:
    """Its output is two of them, one above the other: with gradients, and without."""
    output = variant(*tensors.qkv, Mask.causal(), tensors.inputs)
    chosen = torch.zeros_like(cotangent)
    for start, end in blocks:
        chosen[:, :, start:end] = cotangent[:, :, start:end]
    output.backward(chosen)
    with torch.no_grad():
        untracked = variant(*tensors.qkv, Mask.causal(), tensors.inputs)
    both = torch.stack([output.detach(), untracked])
    rows = torch.cat([both[:, :, :, start:end] for start, end in blocks], dim=3)
    return _results(rows, tensors)


def _results(output: Tensor, tensors: Tensors) -> dict[str, Tensor]:
    """Output and gradients; an input that has no influence has a gradient of zero."""
    gradients = {
        name: torch.zeros_like(x) if x.grad is None else x.grad
        for name, x in tensors.leaves.items()
    }
    return {"output": output, **gradients}


def _judge(
    exact: dict[str, Tensor],
    plain: dict[str, Tensor],
    found: dict[str, Tensor],
    length: int,
    rows: int,
) -> Proof:
    errors: dict[str, float] = {}
    allowed: dict[str, float] = {}
    wrong = []
    for name, truth in exact.items():
        first = name == "output"
        unit = torch.finfo(torch.float32).eps * float(truth.abs().max())
        loss = float((plain[name].double() - truth).abs().max())
        errors[name] = float((found[name].double() - truth).abs().max())
        allowed[name] = (_LOSS_OUTPUT if first else _LOSS_GRADIENT) * loss
        allowed[name] += (_UNITS_OUTPUT if first else _UNITS_GRADIENT) * unit
        # Written so that NaN is wrong.
        if not errors[name] <= allowed[name]:
            what = "the output" if first else f"the gradient of {name}"
            wrong.append(
                f"{what} differs from the definition by {errors[name]:.2g} "
                f"(allowed {allowed[name]:.2g})"
            )
    reason = f"wrong at length {length}: {'; '.join(wrong)}" if wrong else ""
    return Proof(
        passed=not wrong, length=length, rows=rows, errors=errors, allowed=allowed, reason=reason
    )
