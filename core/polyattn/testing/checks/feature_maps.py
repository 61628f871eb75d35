"""M. Feature maps: any size of map, the definition, and samples that know nothing of each other."""

from __future__ import annotations

import torch

from polyattn.testing.cases import normal
from polyattn.testing.feature_maps import FeatureMapSubject, against_map_definition
from polyattn.testing.numerics import compare, need_finite, need_tensor, same_tolerance
from polyattn.testing.results import Mismatch, Seen, proves
from polyattn.testing.subject import blaming


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
        against = 1e-2 if dtype.itemsize == 2 else 1e-5
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
