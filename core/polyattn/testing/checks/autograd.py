"""J. Autograd: gradients against finite differences, and any strides in either direction."""

from __future__ import annotations

import re
from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError, gradcheck, gradgradcheck

from polyattn.capabilities import Part
from polyattn.testing.planned import Trait, having
from polyattn.testing.results import Mismatch, Seen, proves
from polyattn.testing.subjects.sequence import Outcome, Subject, blaming, gradients
from polyattn.testing.tools.cases import SQUARE, TINY, Sample, Shape, normal
from polyattn.testing.tools.compare import same_outcome
from polyattn.testing.tools.masks import combine, learned, learned_of, relearned
from polyattn.testing.tools.numerics import compare


@proves(
    "The gradients are those of finite differences, in float64.",
    causes=(
        "a backward pass written by hand that lacks one path",
        "a normaliser or a maximum that is detached, and matters",
        "a bias whose gradient is dropped, or slopes of alibi whose gradient is",
    ),
    claim="devices (backward)",
)
def check_gradcheck(
    subject: Subject, parts: tuple[Part, ...] = (), learns_mask: bool = False
) -> None:
    """``learns_mask``: biases and slopes require gradients, too."""
    _finite_differences(subject, parts, learns_mask, gradcheck)


@proves(
    "The gradients of the gradients are those of finite differences, in float64.",
    causes=(
        "a backward pass under once_differentiable, or of a kernel that has no second one",
        "a backward pass that detaches what it reads",
    ),
    claim="devices (double_backward)",
)
def check_double_backward(subject: Subject, shape: Shape, parts: tuple[Part, ...] = ()) -> None:
    _finite_differences(subject, parts, False, gradgradcheck, shape)


def _finite_differences(
    subject: Subject,
    parts: tuple[Part, ...],
    learns_mask: bool,
    compared: Callable[..., bool],
    shape: Shape = TINY,
) -> None:
    shape = subject.fit(shape)
    mask = combine(sorted(subject.capabilities.requires | frozenset(parts)), shape)
    sample = subject.draw(shape, dtype=torch.float64)
    sample = sample.masked(learned(mask) if learns_mask else mask)
    instance = subject.at(shape, dtype=torch.float64)
    drawn = sample.each(lambda x: x.clone().requires_grad_()).leaves()
    leaves = {**drawn, **learned_of(sample.mask)}

    def function(*tensors: Tensor) -> Tensor:
        named = dict(zip(leaves, tensors, strict=True))
        own = {name: named[name] for name in drawn}
        return instance(sample.having(**own).masked(relearned(sample.mask, named)))

    function(*leaves.values())
    with blaming(sample.describe()):
        try:
            compared(
                function,
                tuple(leaves.values()),
                atol=1e-5,
                rtol=1e-4,
                # One random direction where every element would take minutes.
                fast_mode=sum(x.numel() for x in leaves.values()) > 500,
            )
        except GradcheckError as error:
            what = _mismatch(str(error), list(leaves))
            raise Mismatch(Seen(what=what, given=sample.describe())) from error


def _mismatch(told: str, names: list[str]) -> str:
    """What torch says of a wrong gradient, without the two matrices, and the tensor by its name."""
    told = " ".join(told.split()).partition(", numerical:")[0][:160]
    # Of second derivatives the gradient of the output is an input, too: the last.
    every = [*names, "the gradient of the output"]
    return re.sub(r"with respect to input (\d+)", lambda x: f"of {every[int(x[1])]}", told)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "length_before_heads": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "length_last": lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
    "every_second": lambda x: torch.stack([x, x + 9.0], dim=-1).flatten(-2)[..., ::2],
    "part_of_a_row": lambda x: torch.cat([x + 5.0, x, x - 5.0], dim=-1)[
        ..., x.shape[-1] : 2 * x.shape[-1]
    ],
    "one_sample_expanded": lambda x: x[:1].expand(x.shape),
    "one_head_expanded": lambda x: x[:, :1].expand(x.shape),
}
"""The same numbers (for the expanded: the same for each) in memory that is not contiguous."""


@having(Trait.MANNERS)
@proves(
    "Strides do not matter: inputs and gradients of any layout give what contiguous ones give.",
    causes=(
        "view() or data_ptr arithmetic on a tensor that is not contiguous",
        "an expanded tensor (stride 0) that is written to",
        "a backward pass that takes the gradient of the output to be contiguous",
    ),
)
def check_noncontiguous(subject: Subject, layout: str, alone: str = "") -> None:
    """``alone``: the one tensor, q, k or v, that is laid out so; all of them where it is empty."""
    shape = subject.fit(SQUARE)
    sample, instance = subject.draw(shape), subject.at(shape)
    if layout == "grad_out_expanded":
        _expanded_gradient(subject, sample)
        return
    change = LAYOUTS[layout]
    changed = {alone: sample.leaves()[alone]} if alone else sample.leaves()
    odd = sample.having(**{name: change(x) for name, x in changed.items()})
    flat = odd.each(lambda x: x.contiguous())
    given = f"{sample.describe()}, {layout}{f' of {alone} alone' if alone else ''}"
    compare(
        "the output",
        instance(odd),
        instance(flat),
        tolerance=1e-10 if sample.dtype == torch.float64 else 1e-5,
        given=given,
    )
    if subject.backward:
        _gradients(subject, odd, flat, given)


def _gradients(subject: Subject, odd: Sample, flat: Sample, given: str) -> None:
    """``run`` clones its leaves, which keeps strides but not overlaps: so it is done by hand."""
    instance = subject.at(subject.fit(SQUARE))
    leaves = odd.each(lambda x: x.detach().requires_grad_())
    out = instance(leaves)
    weight = normal(*out.shape, seed=3).to(out.dtype)
    reference = instance.run(flat, weight)
    # A transposed gradient: what a head merge after the attention gives.
    weight = weight.transpose(1, 2).contiguous().transpose(1, 2)
    with blaming(given):
        got = Outcome(out.detach(), gradients(out, leaves.leaves(), weight))
    same_outcome(got, reference, flat, given=given)


def _expanded_gradient(subject: Subject, sample: Sample) -> None:
    if not subject.backward:
        return
    instance = subject.at(subject.fit(SQUARE))
    size = (*sample.q.shape[:3], sample.v.shape[3])
    one = torch.ones((), dtype=sample.dtype)
    got = instance.run(sample, one.expand(size))
    want = instance.run(sample, torch.ones(size, dtype=sample.dtype))
    same_outcome(got, want, sample, given=f"{sample.describe()}, a gradient of stride 0")
