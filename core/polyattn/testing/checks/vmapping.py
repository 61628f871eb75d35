"""L. vmap: a call that is mapped over a new dimension is the stack of the calls."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from polyattn.mask import Mask
from polyattn.testing.planned import Trait, having
from polyattn.testing.results import proves
from polyattn.testing.subjects.sequence import Instance, Subject, blaming, fixed_gradient
from polyattn.testing.tools.cases import SQUARE, Sample
from polyattn.testing.tools.compare import output_tolerance
from polyattn.testing.tools.masks import padding_keep, random_keep
from polyattn.testing.tools.numerics import compare, largest, same_tolerance

MAPPED = 3
Tensors = dict[str, Tensor]


@having(Trait.ON_THE_CPU)
@proves(
    "torch.vmap of a call is the stack of the calls: with a mask shared or mapped, fewer key "
    "heads, and of the gradient.",
    causes=(
        "an operator of its own without a rule for vmap",
        "an autograd.Function without generate_vmap_rule",
        "a value of a tensor that is read in Python: .item(), bool()",
    ),
)
def check_vmap(subject: Subject, case: str) -> None:
    """``case``: ``forward``, ``grouped``, ``gradient``, ``padding`` or ``dense``."""
    shape = subject.fit(SQUARE)
    if case == "grouped":
        shape = shape.of(heads=4, kv_heads=2)
    samples = [subject.draw(shape, seed=seed) for seed in range(MAPPED)]
    instance, given = subject.at(shape), f"{MAPPED} times {samples[0].describe()}, vmap, {case}"
    calls = [dict(sample.leaves()) for sample in samples]
    if case in ("padding", "dense"):
        for i, call in enumerate(calls):
            size = (shape.batch, 1, shape.queries, shape.keys)
            whole = random_keep(*size, seed=i)
            call["keep"] = whole if case == "dense" else padding_keep(shape, left=bool(i % 2))
    function = _function(instance, samples[0], case)
    stacked = {name: torch.stack([call[name] for call in calls]) for name in calls[0]}
    with blaming(given), _without_hints():
        got = torch.func.vmap(function)(stacked)
    want = [function(call) for call in calls]
    for name in want[0]:
        expected = torch.stack([found[name] for found in want]).detach()
        allowed = output_tolerance(samples[0])
        if case == "gradient":
            allowed = same_tolerance(samples[0].dtype, max(1.0, largest(expected)), factor=4.0)
        compare(name, got[name].detach(), expected, tolerance=allowed, given=given)


def _function(instance: Instance, like: Sample, case: str) -> Callable[[Tensors], Tensors]:
    """From the tensors of one call to what is compared, by name."""

    def forward(tensors: Tensors) -> Tensors:
        own = {name: x for name, x in tensors.items() if name != "keep"}
        mask = like.mask
        if case == "padding":
            mask = mask & Mask.padding(tensors["keep"])
        if case == "dense":
            mask = mask & Mask.dense(tensors["keep"])
        out = instance.raw(like.having(**own).masked(mask))
        assert isinstance(out, Tensor)
        return {"the output": out}

    if case != "gradient":
        return forward
    weight = fixed_gradient(like.q[..., :1])

    def loss(tensors: Tensors) -> Tensor:
        out = forward(tensors)["the output"]
        return (out * weight.to(out.dtype)).sum()

    def gradient(tensors: Tensors) -> Tensors:
        found = torch.func.grad(loss)(tensors)
        return {f"the gradient of {name}": grad for name, grad in found.items()}

    return gradient


@contextlib.contextmanager
def _without_hints() -> Iterator[None]:
    """torch says of every operator without a rule that it is slow, on a stream of its own.

    That it does is its default; it can be set, and not be asked for.
    """
    functorch = torch._C._functorch
    functorch._set_vmap_fallback_warning_enabled(False)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        functorch._set_vmap_fallback_warning_enabled(True)  # type: ignore[attr-defined]
