"""Finding out by trying how a function takes a mask: its form, what True means, floats or not."""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch
from torch import Tensor

from polyattn.capabilities import Part
from polyattn.testing.doors.function import Calling, Flow, form_of
from polyattn.testing.doors.layout import Form
from polyattn.testing.doors.probe import MASK_NAMES, Probe, keywords_of, named
from polyattn.testing.doors.reference import LOOSE, distance, softmax_of, triangle
from polyattn.testing.results import CheckFailure, Property, Seen
from polyattn.testing.tools.cases import normal

FORMS: tuple[Form, ...] = ("full", "pairs", "keys")

PARTS_OF: dict[Form, frozenset[Part]] = {
    "full": frozenset({"causal", "window", "padding", "segments", "dense"}),
    "pairs": frozenset({"causal", "window"}),
    "keys": frozenset({"padding"}),
}
"""Which masks can be said in which form."""

TAKES_MASK = Property(
    meaning="The mask argument that was named takes a mask.",
    causes=("another name or form of the argument", "the mask is read in the wrong dtype"),
    claim="--mask-arg",
)


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
        found = _taken(probe, candidate, true_means)
        if found is None and name:
            what = f"{candidate} takes no mask: {probe.error}"
            raise CheckFailure("check_mask_polarity_and_dtype", TAKES_MASK, Seen(what=what))
        if found is None:
            probe.say(f"the argument {candidate} took no mask ({probe.error}): no masks")
            continue
        form, meaning, closes = found
        full = "(B, H, L, S)" if not probe.layout.folded else "(B, L, S)"
        told = {"full": full, "pairs": "(L, S)", "keys": "(B, S)"}[form]
        if closes:
            probe.say(f"masks go to {candidate} as {told}, where {MEANINGS[meaning]}")
        else:
            probe.say(
                f"{candidate} takes masks as {told} and closes nothing, whatever "
                f"True means: checked as if True should attend"
            )
        return dataclasses.replace(
            calling,
            mask_arg=candidate,
            mask_form=form,
            true_attends=meaning != "masked",
            as_floats=meaning == "floats",
            as_ones=meaning == "ones",
        )
    return calling


Meaning = Literal["attend", "masked", "floats", "ones"]
MEANINGS: dict[Meaning, str] = {
    "attend": "True may attend",
    "masked": "True is masked",
    "floats": "0 may attend and -inf closes; booleans do not close",
    "ones": "1.0 may attend and 0.0 closes; booleans do not close",
}


def _taken(probe: Probe, name: str, true_means: str | None) -> tuple[Form, Meaning, bool] | None:
    """The form in which a mask is taken, what its elements mean, and whether they do."""
    by_keys = "key" in name or "padding" in name
    forms: tuple[Form, ...] = ("keys", "full") if by_keys else FORMS
    boolean = next((form for form in forms if _always_taken(probe, name, form)), None)
    reason = probe.error
    if boolean and true_means is not None:
        return boolean, "attend" if true_means == "attend" else "masked", True
    if boolean:
        for meaning in ("attend", "masked"):
            if _closes(probe, name, boolean, meaning):
                return boolean, meaning, True
    numbers: tuple[Meaning, ...] = ("ones", "floats")
    for meaning in numbers:
        for form in forms:
            if _always_taken(probe, name, form, meaning) and _closes(probe, name, form, meaning):
                return form, meaning, True
    if boolean:
        return boolean, "attend", False
    probe.error = reason
    return None


def mask_of(probe: Probe, keep: Tensor, form: Form, meaning: Meaning) -> Tensor:
    mask = form_of(keep, form, probe.layout, keep.shape[1]).clone()
    if meaning == "floats":
        return torch.zeros(mask.shape, dtype=probe.dtype).masked_fill(~mask, -torch.inf)
    if meaning == "ones":
        return mask.to(probe.dtype)
    return mask if meaning == "attend" else ~mask


def _always_taken(probe: Probe, name: str, form: Form, meaning: Meaning = "attend") -> bool:
    """With values of another width and with gradients too: some kernels are picky there."""
    samples = [probe.sample(), probe.sample().each(lambda x: x.clone().requires_grad_())]
    wide = probe.sample(value_dim=probe.width + 2)
    if probe.tried(wide) is not None:
        samples.append(wide)
    length = probe.length
    keep = triangle(length, length).expand(2, 2, -1, -1)
    return all(
        probe.tried(sample, **{name: mask_of(probe, keep, form, meaning)}) is not None
        for sample in samples
    )


def _closes(probe: Probe, name: str, form: Form, meaning: Meaning) -> bool:
    """Whether a key that is closed in this sense loses its influence, and an open one keeps it."""
    sample = probe.sample()
    batch, heads, length, _ = sample.q.shape
    keep = torch.ones(batch, heads, length, length, dtype=torch.bool)
    keep[..., 1] = False

    def influence(column: int) -> float:
        """How much the last outputs change with the values of one key."""
        changed = sample.v.clone()
        changed[:, :, column] += 1.0
        outs = [
            probe.tried(sample.having(v=v), **{name: mask_of(probe, keep, form, meaning)})
            for v in (sample.v, changed)
        ]
        if outs[0] is None or outs[1] is None:
            return 0.0
        return float((outs[1] - outs[0])[:, :, -1].detach().nan_to_num().abs().max())

    return influence(1) < influence(0) / 100


def adds_floats(probe: Probe, calling: Calling, flow: Flow | None) -> bool:
    """Whether a float mask is added to the logits, or ought to be: see the reasons below."""
    if calling.mask_arg is None or calling.mask_form != "full" or calling.as_ones or flow is None:
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


def takes_flag_with_mask(probe: Probe, calling: Calling) -> bool:
    """Whether the causal flag and a mask may be given together; what comes out, the checks say."""
    if calling.causal_flag is None or calling.mask_arg is None:
        return False
    length = probe.length
    keep = torch.ones(2, 2, length, length, dtype=torch.bool)
    meaning: Meaning = "attend" if calling.true_attends else "masked"
    meaning = "floats" if calling.as_floats else "ones" if calling.as_ones else meaning
    mask = mask_of(probe, keep, calling.mask_form, meaning)
    both = {calling.causal_flag: True, calling.mask_arg: mask}
    if probe.tried(probe.sample(), **both) is None:
        probe.say(
            f"{calling.causal_flag} and {calling.mask_arg} together are refused ({probe.error}): "
            "causal is then said in the mask"
        )
        return False
    return True
