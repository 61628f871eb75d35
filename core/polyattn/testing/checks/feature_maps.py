"""M. Feature maps: any size of map, the definition, and samples that know nothing of each other."""

from __future__ import annotations

import torch
from torch import Tensor

from polyattn.errors import PolyattnError
from polyattn.testing.planned import Trait, having
from polyattn.testing.results import Mismatch, Seen, proves
from polyattn.testing.subjects.feature_maps import FeatureMapSubject, against_map_definition
from polyattn.testing.subjects.sequence import blaming, fixed_gradient
from polyattn.testing.tools.cases import normal
from polyattn.testing.tools.numerics import (
    compare,
    largest,
    need_finite,
    need_tensor,
    same_tolerance,
)
from polyattn.testing.tools.raising import must_raise


@having(Trait.PLAIN_CALL)
@proves(
    "Any map keeps its shape, dtype and memory format: one pixel, one row, H unlike W, few "
    "channels.",
    causes=(
        "a squeeze() that drops the batch or a spatial dimension of size 1",
        "a hidden width of channels // ratio, which is 0 for few channels",
        "pooling to a fixed size",
    ),
    claim="spatial_dims, devices (dtypes)",
)
def check_fm_shape_grid(
    subject: FeatureMapSubject, size: tuple[int, ...], dtype: torch.dtype
) -> None:
    module = subject.build(size[1], dtype)
    x = normal(*size, seed=1).to(dtype)
    layouts = [x]
    if x.dim() == 4:
        layouts.append(x.contiguous(memory_format=torch.channels_last))
    for given in layouts:
        told = f"x {size}, {dtype}, strides {given.stride()}"
        with blaming(told):
            out = need_tensor("the output", module(given), told)
        for name, found, wanted in (
            ("shape", tuple(out.shape), size),
            ("dtype", out.dtype, dtype),
            ("device", out.device, x.device),
        ):
            if found != wanted:
                what = f"the output has {name} {found}, expected {wanted}"
                raise Mismatch(Seen(what=what, given=told))
        need_finite("the output", out, told)
        if given is not x and min(size[1:]) > 1 and out.stride() != given.stride():
            what = f"channels_last in, strides {out.stride()} out, expected {given.stride()}"
            raise Mismatch(Seen(what=what, given=told))
        against = 1e-2 if dtype.itemsize == 2 else same_tolerance(dtype, largest(x))
        compare(
            "the output, against that of contiguous memory",
            out,
            module(x),
            tolerance=against,
            given=told,
        )


@proves(
    "The output and its gradient are those of the definition, in float64.",
    causes=(
        "the wrong activation, or one missing between the two layers",
        "a sum in place of a mean, or pooling over one axis only",
        "a gate that is added in place of multiplied",
    ),
)
def check_fm_matches_reference(subject: FeatureMapSubject, size: tuple[int, ...]) -> None:
    against_map_definition(subject, size)


@proves(
    "In evaluation a sample alone gives what it gives in a batch, however loud the others are.",
    causes=("pooling or a norm over the batch", "batch statistics in evaluation"),
)
def check_fm_batch_independence(subject: FeatureMapSubject, size: tuple[int, ...]) -> None:
    dtype = subject.dtype
    module = subject.build(size[1], dtype)
    x = normal(*size, seed=2).to(dtype)
    given = f"x {size}, {dtype}"
    with blaming(given), torch.no_grad():
        together = module(x)
        louder = module(torch.cat([x[:1], x[1:] * 20.0]))
        alone = [module(x[b : b + 1]) for b in range(size[0])]
    tolerance = same_tolerance(dtype, float(x.abs().max()))
    for b, own in enumerate(alone):
        compare(
            f"sample {b} in the batch, against it alone",
            together[b : b + 1],
            own,
            tolerance=tolerance,
            given=given,
        )
    compare(
        "sample 0 when the others are 20 times as large",
        louder[:1],
        together[:1],
        tolerance=tolerance,
        given=given,
    )


@proves(
    "Pixels that keep closes count for nothing: a padded map gives on its real pixels what it "
    "gives without the padding.",
    causes=(
        "a mean over all pixels, or divided by the size of the padded map",
        "keep of the first sample used for all",
        "padding set to zero, which a maximum or a mean still counts",
    ),
    claim="keep",
)
def check_fm_masked_region(
    subject: FeatureMapSubject, size: tuple[int, ...], garbage: float
) -> None:
    """Sample b is padded by b + 1 pixels at the end of each dimension."""
    dtype, batch = subject.dtype, size[0]
    module = subject.build(size[1], dtype)
    wide = (*size[:2], *(n + batch for n in size[2:]))
    keep = torch.ones(batch, *wide[2:], dtype=torch.bool)
    for b in range(batch):
        for axis in range(len(size) - 2):
            keep[b].narrow(axis, size[2 + axis] - b, batch + b).fill_(False)
    x = normal(*wide, seed=4).to(dtype).masked_fill(~keep[:, None], garbage).requires_grad_()
    given = f"x {wide}, {dtype}, closed pixels of {garbage:g}"
    weight = fixed_gradient(x).to(dtype) * keep[:, None]
    with blaming(given):
        out = need_tensor("the output", module(x, keep), given)
        (grad,) = torch.autograd.grad(out, x, weight)
    for b in range(batch):
        corner = [n - b for n in size[2:]]
        own = _corner(x.detach(), b, corner).contiguous().requires_grad_()
        with blaming(given):
            alone = module(own)
            (wanted,) = torch.autograd.grad(alone, own, _corner(weight, b, corner))
        for what, got, want in (("output", out, alone), ("gradient", grad, wanted)):
            compare(
                f"the {what} of the real pixels of sample {b}, against it cropped",
                _corner(got, b, corner),
                want,
                tolerance=same_tolerance(dtype, max(largest(x), largest(want)), factor=4.0),
                given=given,
            )
    compare(
        "the gradient of the closed pixels",
        grad.masked_select(~keep[:, None]),
        torch.zeros_like(grad.masked_select(~keep[:, None])),
        tolerance=0.0,
        given=given,
    )


def _corner(x: Tensor, sample: int, lengths: list[int]) -> Tensor:
    """The first pixels of one sample, (1, C, *lengths)."""
    own = x[sample : sample + 1]
    for axis, length in enumerate(lengths, start=2):
        own = own.narrow(axis, 0, length)
    return own


@proves(
    "The output is the input times a gate within the range that is claimed, however loud the map.",
    causes=(
        "an activation of another range, or none",
        "a factor on the gate, or the gate added to one",
        "the gate added in place of multiplied",
    ),
    claim="gate",
)
def check_fm_gate_bounds(
    subject: FeatureMapSubject, size: tuple[int, ...], loudness: float
) -> None:
    claimed = subject.capabilities.gate
    assert claimed is not None, "only a claimed range can be left"
    low, high = claimed
    dtype = subject.dtype
    module = subject.build(size[1], dtype)
    drawn = normal(*size, seed=5).to(dtype)
    # Away from zero, where the quotient says nothing; a mean that is large saturates the gate.
    x = (drawn + torch.where(drawn < 0, -0.5, 0.5)) * loudness
    given = f"x {size}, {dtype}, {loudness:g} times as loud"
    with blaming(given), torch.no_grad():
        gate = need_tensor("the output", module(x), given) / x
    need_finite("the gate", gate, given)
    slack = same_tolerance(dtype, 1.0)
    compare("the gate", gate, gate.clamp(low, high), tolerance=slack, given=given)


@proves(
    "What is not claimed raises: a mask of pixels, a dtype, a number of spatial dimensions.",
    causes=(
        "forward() overridden, so that the base class checks nothing",
        "a claim that is missing: if the call works, declare it",
    ),
)
def check_fm_unsupported_raises(
    subject: FeatureMapSubject, size: tuple[int, ...], dtype: torch.dtype, masked: bool
) -> None:
    x = normal(*size, seed=6).to(dtype)
    keep = (torch.ones(size[0], *size[2:], dtype=torch.bool),) if masked else ()
    given = f"x {size}, {dtype}{', and keep' if masked else ''}"
    must_raise(
        lambda: subject.build(size[1], dtype)(x, *keep),
        PolyattnError,
        ValueError,
        asked="a call that is not claimed",
        expected="Unsupported or ShapeError",
        given=given,
    )
