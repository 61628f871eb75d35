"""Finding out by trying how a function takes a mask: its form, what True means, floats or not."""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch
from torch import Tensor

from polyattn.capabilities import Part
from polyattn.testing.cases import normal
from polyattn.testing.door_function import Calling, Flow
from polyattn.testing.door_probe import (
    LOOSE,
    MASK_NAMES,
    Probe,
    distance,
    keywords_of,
    named,
    softmax_of,
    triangle,
)
from polyattn.testing.results import CheckFailure, Property, Seen

Form = Literal["full", "pairs", "keys"]
FORMS: tuple[Form, ...] = ("full", "pairs", "keys")

PARTS_OF: dict[Form, frozenset[Part]] = {
    "full": frozenset({"causal", "window", "padding", "segments", "dense"}),
    "pairs": frozenset({"causal", "window"}),
    "keys": frozenset({"padding"}),
}
"""Which masks can be said in which form."""

TAKES_MASK = Property(
    meaning="The mask argument that was named takes a boolean mask.",
    causes=("another name or form of the argument", "the mask is read in the wrong dtype"),
    claim="--mask-arg",
)


def form_of(keep: Tensor, form: Form) -> Tensor:
    """A (B, H, L, S) mask, the same for all that the form cannot tell apart, in that form."""
    if form == "pairs":
        return keep[0, 0]
    return keep[:, 0, 0] if form == "keys" else keep


def find_mask(
    probe: Probe, calling: Calling, *, name: str | None, true_means: str | None
) -> Calling:
    """How it takes masks; ``name`` and ``true_means`` overrule what trying says.

    Raises: CheckFailure where the argument that was named takes no mask.
    """
    readable = keywords_of(probe.function) is not None
    # Without a signature every name would have to be tried: torch's own is the one that is meant.
    known = MASK_NAMES if readable else ("attn_mask",)
    names = [name] if name else list(named(probe.function, known))
    for candidate in names:
        form = _form_taken(probe, candidate)
        if form is None and name:
            what = f"{candidate} takes no boolean mask: {probe.error}"
            raise CheckFailure("check_mask_polarity_and_dtype", TAKES_MASK, Seen(what=what))
        if form is None:
            probe.say(f"the argument {candidate} took no boolean mask ({probe.error}): no masks")
            continue
        attends = _true_attends(probe, candidate, form, true_means)
        calling = dataclasses.replace(
            calling, mask_arg=candidate, mask_form=form, true_attends=attends
        )
        told = {"full": "(B, H, L, S)", "pairs": "(L, S)", "keys": "(B, S)"}[form]
        meaning = "may attend" if attends else "is masked"
        probe.say(f"masks go to {candidate} as {told}, where True {meaning}")
        return calling
    return calling


def _form_taken(probe: Probe, name: str) -> Form | None:
    forms = FORMS if "key" not in name and "padding" not in name else ("keys", "full")
    reason = ""
    for form in forms:
        if _always_taken(probe, name, form):
            return form
        reason = reason or probe.error
    probe.error = reason
    return None


def _always_taken(probe: Probe, name: str, form: Form) -> bool:
    """With values of another width and with gradients too: some kernels are picky there."""
    samples = [probe.sample(), probe.sample().each(lambda x: x.clone().requires_grad_())]
    wide = probe.sample(value_dim=probe.width + 2)
    if probe.tried(wide) is not None:
        samples.append(wide)
    length = probe.length
    keep = triangle(length, length).expand(2, 2, -1, -1).clone()
    return all(
        probe.tried(sample, **{name: form_of(keep, form).clone()}) is not None for sample in samples
    )


def _true_attends(probe: Probe, name: str, form: Form, true_means: str | None) -> bool:
    if true_means is not None:
        return true_means == "attend"
    sample = probe.sample()
    batch, heads, length, _ = sample.q.shape
    keep = torch.ones(batch, heads, length, length, dtype=torch.bool)
    keep[..., 1] = False
    mask = form_of(keep, form)

    def influence(column: int) -> float:
        """How much the last outputs change with the values of one key."""
        changed = sample.v.clone()
        changed[:, :, column] += 1.0
        outs = [
            probe.tried(sample.having(v=v), **{name: mask.clone()}) for v in (sample.v, changed)
        ]
        if outs[0] is None or outs[1] is None:
            return 0.0
        return float((outs[1] - outs[0])[:, :, -1].detach().nan_to_num().abs().max())

    closed, open_ = influence(1), influence(0)
    if open_ < closed / 100:
        return False
    if closed > open_ / 100:
        probe.say(f"{name} closes nothing when True means attend, nor when it means masked")
    return True


def adds_floats(probe: Probe, calling: Calling, flow: Flow | None) -> bool:
    """Whether a float mask is added to the logits, or ought to be: see the reasons below."""
    if calling.mask_arg is None or calling.mask_form != "full" or flow is None:
        return False
    sample = probe.sample()
    batch, heads, length, _ = sample.q.shape
    bias = normal(batch, heads, length, length, seed=99)
    got = probe.tried(sample, **{calling.mask_arg: bias.to(sample.dtype)})
    name = calling.mask_arg
    if got is None:
        probe.say(f"float masks to {name} are refused ({probe.error}): no biases")
        return False
    causal = triangle(length, length) if flow == "causal" else None
    if distance(got, softmax_of(sample, causal, bias=bias)) < LOOSE:
        probe.say(f"float masks to {name} are added to the logits")
        return True
    # Code that reads floats as booleans, as some conventions do, claims nothing about biases.
    for keep in (bias != 0, bias == 0, bias > 0, bias <= 0, bias > 0.5, bias <= 0.5):
        both = keep if causal is None else keep & causal
        if distance(got, softmax_of(sample, both)) < LOOSE:
            probe.say(f"float masks to {name} are read as booleans: no biases")
            return False
    return bool(got.isfinite().all())
