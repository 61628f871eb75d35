"""The doors: code that has never heard of polyattn, checked as it is.

``open_door("file.py:thing")`` loads a function of (q, k, v), a module or a class, finds out by
trying what it is and how it is called, and gives a subject; what was found goes into its notes,
what is wrong already (it does not load, it does not answer) into findings.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
from collections.abc import Callable
from typing import Literal

import torch

from polyattn.errors import ConfigError
from polyattn.testing import door_probe as trying
from polyattn.testing.contained import TimeUp, contained, limited
from polyattn.testing.door_claims import claim
from polyattn.testing.door_diagnose import diagnose
from polyattn.testing.door_function import Calling, Flow, Function, FunctionSubject
from polyattn.testing.door_load import load_thing
from polyattn.testing.door_masks import adds_floats, find_mask
from polyattn.testing.door_probe import Probe
from polyattn.testing.planned import Check, planned
from polyattn.testing.results import CheckFailure, Property, Seen

DOORS = ("sdpa",)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wishes:
    """What the user says in place of what trying finds out."""

    causal: bool = False
    mask_arg: str | None = None
    true_means: Literal["attend", "mask"] | None = None
    reference: Literal["softmax", "none"] = "softmax"


@dataclasses.dataclass(frozen=True)
class Door:
    """An opened door: what to check, what was found at once, and notes for the reader.

    ``subject`` is None where the thing does not answer a plain call at all.
    """

    subject: FunctionSubject | None
    findings: tuple[Check, ...]
    notes: tuple[str, ...]


LOADS = Property(
    meaning="The file can be imported, and changes nothing and prints nothing when it is.",
    causes=("a missing import", "code that runs at the top of the file"),
)
ANSWERS = Property(
    meaning="A plain call with q, k, v of shape (B, H, N, D) in float32 gives such a tensor.",
    causes=(
        "another order of dimensions: this door speaks (batch, heads, length, width)",
        "arguments that must be given; wrap it in a function of (q, k, v)",
        "a width or length that is fixed in the code",
    ),
)
IS_SOFTMAX = Property(
    meaning="What it computes is softmax attention, full or causal.",
    causes=(
        "the scale: missing, from the wrong width, or applied twice",
        "the softmax over the wrong axis, or an epsilon in its denominator",
        "another kind of attention: then give --reference none",
    ),
    claim="--reference none",
)


def failing(name: str, label: str, property: Property, seen: Seen) -> Check:
    """A finding that is made already, as a check that fails."""

    def fail() -> None:
        raise CheckFailure(name, property, seen)

    return dataclasses.replace(planned(fail), id=f"{name}[{label}]")


def open_door(
    target: str,
    wishes: Wishes | None = None,
    *,
    door: str = "sdpa",
    patience: float | None = None,
) -> Door:
    """Load ``file.py:thing`` or ``package.module:thing``, and find out what it is.

    patience: seconds that importing it and each call is given; longer is a finding.

    Raises: ConfigError for a target, a file or a name that does not exist, or an unknown door.
    """
    if door not in DOORS:
        raise ConfigError(f"--as {door}: expected one of {', '.join(DOORS)}")
    loaded = load_thing(target, patience)
    findings = []
    if loaded.problem:
        findings.append(failing("check_thing_loads", "", LOADS, Seen(what=loaded.problem)))
    if loaded.make is None:
        return Door(None, tuple(findings), ())
    opened = door_of(loaded.name, loaded.make, wishes, patience)
    return dataclasses.replace(opened, findings=(*findings, *opened.findings))


def door_of(
    name: str,
    make: Callable[[], Function],
    wishes: Wishes | None = None,
    patience: float | None = None,
) -> Door:
    """The door to a function that ``make`` gives. What it prints meanwhile is not shown."""
    quiet = io.StringIO()
    with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
        with limited(patience), contained():
            probe = Probe(make(), patience=patience)
        try:
            return _door_of(name, make, probe, wishes or Wishes())
        except TimeUp as error:
            return _shut(probe, f"{error}; given {probe.sample().describe()}")


def _shut(probe: Probe, what: str) -> Door:
    """There is no answer to a plain call: that is all that can be said."""
    finding = failing("check_output_shape_dtype_device", "plain call", ANSWERS, Seen(what=what))
    return Door(None, (finding,), tuple(probe.notes))


def _door_of(name: str, make: Callable[[], Function], probe: Probe, wishes: Wishes) -> Door:
    if isinstance(probe.function, torch.nn.Module):
        probe.function.eval()
    if not trying.sizes_it_takes(probe):
        return _shut(probe, _answer(probe))
    got = probe.tried(probe.sample())
    if got is None:
        return _shut(probe, f"the same call again: {probe.error}")
    if not bool(got.isfinite().all()):
        return _shut(probe, "the output of a plain call holds NaN or infinity")
    return _walked_through(name, make, probe, wishes)


def _answer(probe: Probe) -> str:
    sample = probe.sample()
    try:
        got = probe.call(sample)
    except Exception:
        return f"it raised {probe.error}; given {sample.describe()}"
    shape = tuple(got.shape) if isinstance(got, torch.Tensor) else type(got).__name__
    expected = (*sample.q.shape[:3], sample.v.shape[3])
    return f"the output is {shape}, expected a tensor of shape {expected}"


def _walked_through(name: str, make: Callable[[], Function], probe: Probe, wishes: Wishes) -> Door:
    findings: list[Check] = []
    matched = None if wishes.reference == "none" else trying.flow_of(probe)
    flow = _flow(probe, matched, wishes)
    right = matched == flow
    if wishes.reference != "none" and not right:
        sample = probe.sample()
        told = diagnose(probe.call(sample), sample)
        what = f"neither full nor causal softmax attention: {told}"
        if matched is not None:
            what = f"asked for as {flow}, but it is {matched} softmax attention"
        seen = Seen(what=what, given=sample.describe())
        findings.append(failing("check_matches_reference", "softmax", IS_SOFTMAX, seen))
    calling = Calling(flow=flow, meddles=trying.meddles(probe))
    calling = dataclasses.replace(calling, causal_flag=trying.causal_flag(probe, flow))
    try:
        calling = find_mask(probe, calling, name=wishes.mask_arg, true_means=wishes.true_means)
    except CheckFailure as failure:
        seen = failure.seen
        findings.append(failing(failure.check, "mask argument", failure.property, seen))
    known = flow if right else None
    calling = dataclasses.replace(calling, adds_floats=adds_floats(probe, calling, known))
    subject = FunctionSubject(name, make, calling)
    subject.has_definition = subject.sees_all = right
    subject.why_no_definition = (
        "--reference none" if wishes.reference == "none" else "no reference matched"
    )
    if probe.length > 6:
        subject.width = probe.width
    claim(subject, probe, known, softmax=wishes.reference != "none")
    subject.notes = tuple(probe.notes)
    return Door(subject, tuple(findings), subject.notes)


def _flow(probe: Probe, matched: Flow | None, wishes: Wishes) -> Flow:
    if wishes.causal:
        return "causal"
    if matched is not None:
        probe.say(f"it matches {matched} softmax attention")
        return matched
    if trying.looks_causal(probe):
        probe.say("its first output does not see the last value: taken to be causal")
        return "causal"
    return "full"
