"""The doors: code that has never heard of polyattn, checked as it is.

``open_door("file.py:thing")`` loads a function of (q, k, v), a module or a class, finds out by
trying what it is and how it is called, and gives a subject; what was found goes into its notes,
what is wrong already (it does not load, it does not answer) into findings.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import io
from collections.abc import Callable
from typing import Literal

import torch

from polyattn.capabilities import FLOATS, Capabilities, Lengths, Part, Support
from polyattn.errors import ConfigError
from polyattn.testing import door_probe as trying
from polyattn.testing.door_diagnose import diagnose
from polyattn.testing.door_function import Calling, Flow, Function, FunctionSubject
from polyattn.testing.door_load import load_thing
from polyattn.testing.door_masks import PARTS_OF, adds_floats, find_mask
from polyattn.testing.door_probe import Probe, distance, softmax_of, triangle
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


def open_door(target: str, wishes: Wishes | None = None, *, door: str = "sdpa") -> Door:
    """Load ``file.py:thing`` or ``package.module:thing``, and find out what it is.

    Raises: ConfigError for a target, a file or a name that does not exist, or an unknown door.
    """
    if door not in DOORS:
        raise ConfigError(f"--as {door}: expected one of {', '.join(DOORS)}")
    loaded = load_thing(target)
    findings = []
    if loaded.problem:
        findings.append(failing("check_thing_loads", "", LOADS, Seen(what=loaded.problem)))
    if loaded.make is None:
        return Door(None, tuple(findings), ())
    opened = door_of(loaded.name, loaded.make, wishes)
    return dataclasses.replace(opened, findings=(*findings, *opened.findings))


def door_of(name: str, make: Callable[[], Function], wishes: Wishes | None = None) -> Door:
    """The door to a function that ``make`` gives. What it prints meanwhile is not shown."""
    quiet = io.StringIO()
    with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
        return _door_of(name, make, wishes or Wishes())


def _door_of(name: str, make: Callable[[], Function], wishes: Wishes) -> Door:
    probe = Probe(make())
    if isinstance(probe.function, torch.nn.Module):
        probe.function.eval()
    if not trying.sizes_it_takes(probe):
        finding = failing(
            "check_output_shape_dtype_device", "plain call", ANSWERS, Seen(what=_answer(probe))
        )
        return Door(None, (finding,), tuple(probe.notes))
    got = probe.call(probe.sample())
    if not bool(got.isfinite().all()):
        what = "the output of a plain call holds NaN or infinity"
        finding = failing("check_output_shape_dtype_device", "plain call", ANSWERS, Seen(what=what))
        return Door(None, (finding,), tuple(probe.notes))
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
    _claim(subject, probe, wishes, known)
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


def _claim(subject: FunctionSubject, probe: Probe, wishes: Wishes, known: Flow | None) -> None:
    """What it was seen to take, as claims."""
    calling = subject.calling
    masks: set[Part] = set(PARTS_OF[calling.mask_form]) if calling.mask_arg else set()
    if calling.adds_floats:
        masks |= {"bias", "alibi"}
    causal = calling.flow == "causal"
    if calling.causal_flag or causal:
        masks.add("causal")
    unequal = probe.tried(probe.sample(queries=probe.length, keys=2 * probe.length)) is not None
    if not unequal:
        probe.say(f"L and S must be equal ({probe.error})")
    by_tensor = calling.mask_arg is not None and calling.mask_form != "keys" and not causal
    if unequal and "causal" in masks and not by_tensor:
        subject.why_square_only = _alignment(probe, calling, known)
        unequal = unequal and not (causal and subject.why_square_only)
    groups = trying.grouped(probe)
    if groups is not None:
        subject.calling = dataclasses.replace(calling, grouped=groups)
    wide = probe.tried(probe.sample(value_dim=probe.width + 2)) is not None
    support = Support(dtypes=_dtypes(probe, known), backward=trying.takes_gradients(probe))
    softmax = wishes.reference != "none"
    subject.capabilities = Capabilities(
        masks=frozenset(masks),
        requires=frozenset({"causal"} if causal else ()),
        unequal_lengths=unequal,
        grouped_heads="no" if groups is None else "native",
        value_width=wide and subject.width is None,
        lengths=Lengths(multiple_of=probe.length if probe.length > 6 else 1),
        devices={"cpu": support},
        exactness="exact" if softmax else "own kernel",
        rows_sum_to_one=softmax or _sums_to_one(probe),
        key_order_invariant=softmax,
    )


def _alignment(probe: Probe, calling: Calling, known: Flow | None) -> str:
    """Why causal attention is checked at L = S alone; empty where it is checked everywhere."""
    sample = probe.sample(queries=probe.length, keys=2 * probe.length)
    flag = {calling.causal_flag: True} if calling.causal_flag else {}
    got = probe.tried(sample, **flag)
    if got is None:
        return f"causal with L < S is not taken: {probe.error}"
    if known is None or distance(got, softmax_of(sample, triangle(*sample.lengths))) < trying.LOOSE:
        # The flag is only handed on where L = S; what it does elsewhere is seen here.
        return "the causal flag is checked at L = S" if flag else ""
    if distance(got, softmax_of(sample, triangle(*sample.lengths, last=False))) < trying.LOOSE:
        note = (
            "causal with L < S aligns at the first key, as torch's is_causal does: right for a "
            "whole sequence, wrong for decoding with a cache"
        )
        probe.say(note)
        return note
    return ""


def _dtypes(probe: Probe, known: Flow | None) -> frozenset[torch.dtype]:
    """The dtypes it takes. Float64 only where it computes in it: some code narrows inside."""
    taken = {torch.float32}
    for dtype in FLOATS - {torch.float32}:
        sample = probe.sample(dtype=dtype)
        function, kept = probe.function, probe.function
        if isinstance(function, torch.nn.Module):
            probe.function = copy.deepcopy(function).to(dtype)
        got = probe.tried(sample)
        probe.function = kept
        name = str(dtype).removeprefix("torch.")
        if got is None:
            probe.say(f"{name} is not taken ({probe.error})")
            continue
        if dtype == torch.float64 and known is not None:
            keep = triangle(*sample.lengths) if known == "causal" else None
            if distance(got, softmax_of(sample, keep)) > 1e-9:
                probe.say("float64 is computed in a narrower type: values are checked in float32")
                continue
        taken.add(dtype)
    return frozenset(taken)


def _sums_to_one(probe: Probe) -> bool:
    sample = probe.sample()
    got = probe.tried(sample.having(v=torch.ones_like(sample.v)))
    return got is not None and distance(got, torch.ones_like(got).double()) < 1e-3
