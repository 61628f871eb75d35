"""M. Feature maps in memory: strides of any kind, and arguments that are left as they are."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from polyattn.testing.results import Mismatch, Seen, proves
from polyattn.testing.subjects.feature_maps import FeatureMapSubject, run_map, same_map_outcome
from polyattn.testing.subjects.sequence import blaming, fixed_gradient
from polyattn.testing.tools.cases import normal
from polyattn.testing.tools.numerics import need_tensor

CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def _channels_last(x: Tensor) -> Tensor:
    return x.transpose(1, -1).contiguous().transpose(1, -1) if x.dim() == 3 else _last(x)


def _last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=CHANNELS_LAST[x.dim()])


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "channels_last": _channels_last,
    "transposed": lambda x: x.transpose(-1, -2).contiguous().transpose(-1, -2),
    "batch_inside": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "every_second": lambda x: torch.stack([x, x + 9.0], dim=-1).flatten(-2)[..., ::2],
    "part_of_a_row": lambda x: torch.cat([x + 5.0, x, x - 5.0], dim=-1)[
        ..., x.shape[-1] : 2 * x.shape[-1]
    ],
    "one_sample_expanded": lambda x: x[:1].expand(x.shape),
    "one_channel_expanded": lambda x: x[:, :1].expand(x.shape),
    "one_pixel_expanded": lambda x: x[..., :1].expand(x.shape),
}
"""The same numbers (for the expanded: the same for each) in memory of another order."""


@proves(
    "Strides do not matter: a map or a gradient in any memory format gives what a contiguous one "
    "gives, and channels_last gives channels_last.",
    causes=(
        "view(), as_strided() or data_ptr arithmetic on a map that is not contiguous",
        "a contiguous() or an empty() that forgets the memory format of x",
        "a backward pass that takes the gradient of the output to be contiguous",
    ),
)
def check_fm_memory_format(
    subject: FeatureMapSubject, size: tuple[int, ...], layout: str, of: str
) -> None:
    """``of``: "x" or "grad_out", whose memory it is."""
    dtype = subject.dtype
    module = subject.build(size[1], dtype)
    x = normal(*size, seed=7).to(dtype)
    given = f"x {size}, {dtype}, {of} {layout}"
    weight = fixed_gradient(x).to(dtype)
    if of == "grad_out":
        odd_weight = LAYOUTS[layout](weight)
        got = run_map(module, x, given, grad_out=odd_weight)
        want = run_map(module, x, given, grad_out=odd_weight.contiguous())
        same_map_outcome(got, want, dtype, given=given)
        return
    odd = LAYOUTS[layout](x)
    want = run_map(module, odd.contiguous(), given, grad_out=weight)
    got = run_map(module, odd, given, grad_out=weight)
    same_map_outcome(got, want, dtype, given=given)
    if layout == "channels_last" and min(size[1:]) > 1 and got.out.stride() != odd.stride():
        what = f"channels_last in, strides {got.out.stride()} out, expected {odd.stride()}"
        raise Mismatch(Seen(what=what, given=given))


@proves(
    "The map and its mask are the same after a call as before, in forward and backward.",
    causes=(
        "an in-place operation on an argument: x *= gate, masked_fill_, logical_not_",
        "a view of an argument that is written to",
    ),
)
def check_fm_inputs_not_mutated(
    subject: FeatureMapSubject, size: tuple[int, ...], masked: bool
) -> None:
    dtype = subject.dtype
    module = subject.build(size[1], dtype)
    x = normal(*size, seed=8).to(dtype)
    keep = (normal(size[0], *size[2:], seed=9) > -0.5,) if masked else ()
    given = f"x {size}, {dtype}{', keep' if masked else ''}"

    def unchanged(*arguments: Tensor, backward: bool) -> None:
        before = [(t.detach().clone(), t._version) for t in arguments]
        with blaming(given), torch.set_grad_enabled(backward):
            out = need_tensor("the output", module(*arguments), given)
            if backward:
                torch.autograd.backward(out.sum())
        for name, after, (value, version) in zip(("x", "keep"), arguments, before, strict=False):
            if after._version != version or not torch.equal(after.detach(), value):
                raise Mismatch(Seen(what=f"{name} was written to", given=given))

    unchanged(x.clone(), *keep, backward=False)
    unchanged(x.clone().requires_grad_(), *keep, backward=True)
