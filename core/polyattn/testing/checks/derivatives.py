"""J. Forward mode: derivatives along a direction are right, or refused."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd import forward_ad

from polyattn.capabilities import Part
from polyattn.errors import Unsupported
from polyattn.testing.results import Mismatch, Seen, proves
from polyattn.testing.subjects.feature_maps import FeatureMapSubject
from polyattn.testing.subjects.sequence import Instance, Subject, blaming
from polyattn.testing.tools.cases import TINY, Sample, normal
from polyattn.testing.tools.masks import combine, learned, learned_of, relearned
from polyattn.testing.tools.numerics import compare, largest
from polyattn.testing.tools.raising import must_raise

STEP = 1e-6
TOLERANCE = 1e-6
"""Measured for right code: below 1e-8 of the largest derivative."""


@proves(
    "Forward mode gives the derivatives of finite differences where it is claimed, and is refused "
    "where it is not.",
    causes=(
        "an operator of its own that drops tangents: without the claim they are refused",
        "a tangent that is detached, or of one input only",
        "forward_ad claimed for code that raises",
    ),
    claim="devices (forward_ad)",
)
def check_forward_mode(subject: Subject, parts: tuple[Part, ...] = (), along: str = "") -> None:
    """``along``: the one input that carries a tangent; all of them by default."""
    shape = subject.fit(TINY)
    mask = combine(sorted(subject.capabilities.requires | frozenset(parts)), shape)
    sample = subject.draw(shape).masked(mask)
    if along in ("bias0", "slopes"):
        sample = sample.masked(learned(mask))
    instance, given = subject.at(shape), f"{sample.describe()}, a tangent of {along or 'all'}"
    leaves = _leaves(sample)
    chosen = [along] if along else sorted(sample.leaves())
    tangents = {
        name: normal(*leaves[name].shape, seed=50 + i).to(leaves[name].dtype)
        for i, name in enumerate(chosen)
    }
    support = subject.capabilities.devices[subject.place.name]
    if not support.forward_ad:
        _refused(lambda: _tangent(instance, sample, tangents), given)
        return
    with blaming(given):
        got = _tangent(instance, sample, tangents)
    ahead, behind = (_moved(instance, sample, tangents, sign * STEP) for sign in (1, -1))
    want = (ahead - behind) / (2 * STEP)
    _right(got, want, given)


@proves(
    "Forward mode gives the derivatives of finite differences where it is claimed, and is refused "
    "where it is not.",
    causes=(
        "an operator of its own that drops tangents: without the claim they are refused",
        "a pooling that is detached",
        "forward_ad claimed for code that raises",
    ),
    claim="devices (forward_ad)",
)
def check_fm_forward_mode(subject: FeatureMapSubject, size: tuple[int, ...]) -> None:
    module = subject.build(size[1], torch.float64)
    x, along = normal(*size, seed=1), normal(*size, seed=2)
    given = f"x {size}, torch.float64, with a tangent"

    def tangent() -> Tensor | None:
        with torch.no_grad(), forward_ad.dual_level():
            return _tangent_of(module(_dual(x, along)))

    if not subject.capabilities.devices[subject.place.name].forward_ad:
        _refused(tangent, given)
        return
    with blaming(given), torch.no_grad():
        got = tangent()
        want = (module(x + STEP * along) - module(x - STEP * along)) / (2 * STEP)
    _right(got, want, given)


def _right(got: Tensor | None, want: Tensor, given: str) -> None:
    if got is None:
        what = "forward_ad is claimed, and the output carries no tangent"
        raise Mismatch(Seen(what=what, given=given))
    allowed = TOLERANCE * max(1.0, largest(want))
    compare("the derivative of the output", got, want, tolerance=allowed, given=given)


def _dual(x: Tensor, tangent: Tensor) -> Tensor:
    dual: Tensor = forward_ad.make_dual(x, tangent)  # type: ignore[no-untyped-call]
    return dual


def _tangent_of(x: Tensor) -> Tensor | None:
    tangent: Tensor | None = forward_ad.unpack_dual(x).tangent  # type: ignore[no-untyped-call]
    return tangent


def _leaves(sample: Sample) -> dict[str, Tensor]:
    return {**sample.leaves(), **learned_of(sample.mask)}


def _with(sample: Sample, tensors: dict[str, Tensor]) -> Sample:
    own = {name: x for name, x in tensors.items() if name in sample.leaves()}
    return sample.masked(relearned(sample.mask, tensors)).having(**own)


def _tangent(instance: Instance, sample: Sample, tangents: dict[str, Tensor]) -> Tensor | None:
    leaves = _leaves(sample)
    with torch.no_grad(), forward_ad.dual_level():
        duals = {name: _dual(leaves[name].detach(), along) for name, along in tangents.items()}
        out = instance.raw(_with(sample, duals))
        assert isinstance(out, Tensor)
        return _tangent_of(out)


def _moved(instance: Instance, sample: Sample, tangents: dict[str, Tensor], step: float) -> Tensor:
    leaves = _leaves(sample)
    with torch.no_grad():
        moved = {name: leaves[name].detach() + step * x for name, x in tangents.items()}
        return instance(_with(sample, moved))


def _refused(call: Callable[[], object], given: str) -> None:
    must_raise(
        call,
        Unsupported,
        NotImplementedError,
        asked="a call with a tangent, where forward_ad is not claimed,",
        expected="Unsupported or NotImplementedError",
        given=given,
    )
