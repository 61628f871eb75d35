"""M. Feature maps: what a gate listens to, and how a map may move under it."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from polyattn.testing.results import Mismatch, Seen, proves
from polyattn.testing.subjects.feature_maps import FeatureMapSubject, away_from_zero, gate_of
from polyattn.testing.subjects.sequence import blaming
from polyattn.testing.tools.cases import normal
from polyattn.testing.tools.numerics import (
    compare,
    largest,
    need_shape,
    need_tensor,
    same_tolerance,
)

MARGIN = 6
"""Pixels at each border that a shift may change: kernels up to 13 wide reach no further."""

MOVED = {1: (31,), 2: (19, 21), 3: (15, 16, 17)}
"""Spatial sizes that leave something between the margins."""


@proves(
    "The gate depends on the input, in every channel, also where there are few channels.",
    causes=(
        "a hidden width of channels // ratio, which is 0 for few channels: only the bias is left",
        "an activation that is zero for all there is, or applied with the wrong sign",
        "a gate that is detached, or made of the parameters alone",
    ),
    claim="gate",
)
def check_fm_gate_depends_on_input(subject: FeatureMapSubject, size: tuple[int, ...]) -> None:
    """Channels of unlike levels, each tried with both signs: a hidden unit may be dead for one."""
    dtype = subject.dtype
    module = subject.build(size[1], dtype)
    given = f"{2 * SEEDS} maps x {size}, {dtype}"
    gates = []
    for seed in range(SEEDS):
        levels = normal(*size[:2], *(1 for _ in size[2:]), seed=20 + seed, std=3.0)
        x = away_from_zero(normal(*size, seed=seed) + levels).to(dtype)
        gates += [gate_of(module, x, given), gate_of(module, -x, given)]
    stacked = torch.stack(gates)
    spread = (stacked.amax(0) - stacked.amin(0)).transpose(0, 1).flatten(1).amax(1)
    for channel, width in enumerate(spread.tolist()):
        if width <= MOVES:
            what = f"the gate of channel {channel} is the same for every map, within {width:.1e}"
            raise Mismatch(Seen(what=what, given=given))


SEEDS = 4
MOVES = 1e-6
"""What a gate moves by at least where it listens: measured are 1e-2 and more."""


@proves(
    "The map moves under it as claimed: pixels permuted permute the output; a shifted map gives "
    "the shifted output; a gate of channels is the same for every pixel.",
    causes=(
        "weights or an embedding for each place",
        "a fixed number of cells that the map is divided into",
        "an axis that is treated unlike the other",
        "a stride, or blocks, on which the result depends",
    ),
    claim="symmetry",
)
def check_fm_spatial_symmetry(
    subject: FeatureMapSubject, size: tuple[int, ...], masked: bool = False
) -> None:
    """``masked``: the mask of the real pixels is moved along with them; the others are not read."""
    dtype = subject.dtype
    module = subject.build(size[1], dtype)
    if subject.capabilities.symmetry == "translation":
        _shifted(module, size, dtype)
        return
    x = away_from_zero(normal(*size, seed=3)).to(dtype)
    generator = torch.Generator().manual_seed(4)
    order = torch.randperm(math.prod(size[2:]), generator=generator)
    keep: tuple[Tensor, ...] = (normal(size[0], *size[2:], seed=5) > -0.5,) if masked else ()
    given = f"x {size}, {dtype}{', keep' if masked else ''}, pixels permuted"
    with blaming(given), torch.no_grad():
        out = need_tensor("the output", module(x, *keep), given)
        moved = module(_permuted(x, order), *(_permuted(k, order, 1) for k in keep))
    real = keep[0][:, None] if masked else torch.ones_like(x, dtype=torch.bool)
    expected = _permuted(out.masked_fill(~real, 0.0), order)
    moved = need_shape("the output", moved, tuple(x.shape), given)
    moved = moved.masked_fill(~_permuted(real, order), 0.0)
    tolerance = same_tolerance(dtype, largest(x), factor=4.0)
    told = f"the output{' of the real pixels' if masked else ''}"
    compare(told, moved, expected, tolerance=tolerance, given=given)
    if subject.capabilities.pooling:
        gate, real = (out / x).flatten(2), real.flatten(2)
        first = real.int().argmax(2, keepdim=True).expand(*gate.shape[:2], 1)
        same = gate.gather(2, first).expand_as(gate)
        gate = torch.where(real, gate, same)
        slack = same_tolerance(dtype, 1.0, factor=4.0)
        told = "the gate of each pixel, against that of the first"
        compare(told, gate, same, tolerance=slack, given=given)


def _permuted(x: Tensor, order: Tensor, start: int = 2) -> Tensor:
    """The pixels of x, from dimension ``start`` on, in another order."""
    return x.flatten(start)[..., order].reshape(x.shape)


def _shifted(module: torch.nn.Module, size: tuple[int, ...], dtype: torch.dtype) -> None:
    """Rolled round the borders: sums over the whole map stay what they are."""
    wide = (*size[:2], *MOVED[len(size) - 2])
    x = normal(*wide, seed=3).to(dtype)
    axes = tuple(range(2, len(wide)))
    shift = tuple(range(1, len(axes) + 1))
    given = f"x {wide}, {dtype}, rolled by {shift}"
    with blaming(given), torch.no_grad():
        out = need_tensor("the output", module(x), given).roll(shift, axes)
        moved = need_tensor("the output", module(x.roll(shift, axes)), given)
    for axis, by in zip(axes, shift, strict=True):
        inner = wide[axis] - 2 * MARGIN - by
        out, moved = (y.narrow(axis, MARGIN + by, inner) for y in (out, moved))
    tolerance = same_tolerance(dtype, largest(x), factor=4.0)
    compare("the output away from the borders", moved, out, tolerance=tolerance, given=given)


@proves(
    "The size of the map counts for nothing: laid out two by two, each copy gives what one gives.",
    causes=(
        "a sum over pixels in place of a mean",
        "a mean divided by a number of pixels that is fixed",
        "pooling that reads some of the pixels only",
    ),
    claim="symmetry (pixels)",
)
def check_fm_size_invariance(subject: FeatureMapSubject, size: tuple[int, ...]) -> None:
    dtype = subject.dtype
    module = subject.build(size[1], dtype)
    x = normal(*size, seed=6).to(dtype)
    copies = (1, 1, *(2 for _ in size[2:]))
    given = f"x {size}, {dtype}, each dimension twice"
    with blaming(given), torch.no_grad():
        once = need_tensor("the output", module(x), given)
        twice = module(x.repeat(copies))
    tolerance = same_tolerance(dtype, largest(x), factor=4.0)
    compare("the output", twice, once.repeat(copies), tolerance=tolerance, given=given)


@proves(
    "The gate hears of the pixels what is claimed, and nothing else: raising a maximum moves it "
    "where it pools the maximum, moving a mean where it pools the mean.",
    causes=(
        "a branch that is computed and not added, or added twice in the other's place",
        "a claim that is missing, or one too many",
    ),
    claim="pooling",
)
def check_fm_pooling_branches(
    subject: FeatureMapSubject, size: tuple[int, ...], branch: Literal["avg", "max"]
) -> None:
    """Every mean stays while two maxima rise, or every maximum while the means fall."""
    heard = branch in subject.capabilities.pooling
    dtype = subject.dtype
    module = subject.build(size[1], dtype)
    given = f"x {size}, {dtype}, {CHANGES[branch]}"
    moved = 0.0
    for seed in range(SEEDS):
        levels = normal(*size[:2], 1, seed=40 + seed)
        for sign in (1.0, -1.0):
            base = away_from_zero(normal(*size, seed=30 + seed).flatten(2) + sign * levels)
            other = _raised(base) if branch == "max" else _lowered(base)
            before, after = (
                gate_of(module, pixels.reshape(size).to(dtype), given) for pixels in (base, other)
            )
            moved = max(moved, largest(after - before))
    # Means are kept to a rounding of numbers up to 20.
    still = same_tolerance(dtype, 20.0, factor=4.0)
    if heard and moved <= MOVES:
        what = f"the gate moves by {moved:.1e} at most, though it claims to pool the {branch}"
        raise Mismatch(Seen(what=what, given=given))
    if not heard and moved > still:
        what = f"the gate moves by {moved:.1e}, though it does not claim to pool the {branch}"
        raise Mismatch(Seen(what=what, given=given))


CHANGES = {
    "max": "two maxima raised, every mean kept",
    "avg": "the means lowered, every maximum kept",
}


def _raised(x: Tensor) -> Tensor:
    """x (B, C, N): four numbers moved so that no sum over channels or pixels changes."""
    changed = x.clone()
    changed[:, 0, 0] += 9.0
    changed[:, 0, 1] -= 9.0
    changed[:, 1, 0] -= 9.0
    changed[:, 1, 1] += 9.0
    return changed


def _lowered(x: Tensor) -> Tensor:
    """x (B, C, N): whatever is no maximum, of its channel or of its pixel, lowered."""
    top = (x == x.amax(1, keepdim=True)) | (x == x.amax(2, keepdim=True))
    return torch.where(top, x, x - 9.0)
