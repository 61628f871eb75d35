"""The doors: code that has never heard of polyattn, checked as it is.

``open_door("file.py:thing")`` loads a function of (q, k, v), a module or a class, finds out by
trying what it is and how it is called, and gives a subject; what was found goes into its notes,
what is wrong already (it does not load, it does not answer) into findings.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import torch

from polyattn.errors import ConfigError
from polyattn.testing.doors import probe as trying
from polyattn.testing.doors.causes import Cause, with_flags
from polyattn.testing.doors.claims import claim
from polyattn.testing.doors.diagnose import RANDOM, nearest, not_finite
from polyattn.testing.doors.find import Found, find_layout, keeps_its_width
from polyattn.testing.doors.function import Calling, Flow, Function, FunctionSubject
from polyattn.testing.doors.layout import ORDERS, Order
from polyattn.testing.doors.load import load_thing
from polyattn.testing.doors.masks import adds_floats, find_mask, takes_flag_with_mask
from polyattn.testing.doors.probe import Probe
from polyattn.testing.doors.reference import LOOSE, softmax_of, triangle
from polyattn.testing.doors.roots import (
    Root,
    causes_of,
    explains_all,
    explains_masks,
    explains_nothing,
    explains_values,
    failing,
    loud_roots,
    not_loaded,
)
from polyattn.testing.doors.scales import scale_of
from polyattn.testing.doors.shape import misplaced
from polyattn.testing.doors.signatures import CAUSAL
from polyattn.testing.doors.verdict import verdict
from polyattn.testing.generate.variants import iter_checks
from polyattn.testing.planned import Check
from polyattn.testing.process.contained import TimeUp, contained, limited
from polyattn.testing.results import CheckFailure, Mismatch, Property, Result, Seen

DOORS = ("sdpa",)
OTHER_DOORS = "another door? --as module for x (B, S, E), --as lm for ids"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wishes:
    """What the user says in place of what trying finds out."""

    causal: bool = False
    mask_arg: str | None = None
    true_means: Literal["attend", "mask"] | None = None
    reference: Literal["softmax", "none"] = "softmax"
    layout: Order | None = None


@dataclasses.dataclass(frozen=True)
class Door:
    """An opened door: what to check, what was found at once, and notes for the reader.

    ``subject`` is None where the thing does not answer a plain call at all.
    """

    subject: FunctionSubject | None
    findings: tuple[Check, ...]
    notes: tuple[str, ...]
    roots: tuple[Root, ...] = ()
    """The findings from which other failures follow."""

    def checks(self) -> Iterator[Check]:
        """The findings, then the checks of the subject, in the order in which they tell most."""
        yield from self.findings
        if self.subject is not None:
            for check in iter_checks(self.subject):
                root = self._root_of(check)
                told = f"{root.check.id}: {root.told}" if root else ""
                # Without a definition the flag that is advised was given, or has nothing to switch.
                said = () if self.subject.has_definition else ("--reference none",)
                yield with_flags(check, told, said)

    def follows(self, check: Check) -> str:
        """The id of the finding from which a failure of this check follows; empty if none."""
        if any(check.id == found.id for found in self.findings):
            return ""
        root = self._root_of(check)
        return root.check.id if root else ""

    def _root_of(self, check: Check) -> Root | None:
        return next((root for root in self.roots if root.explains(check)), None)

    def verdict(self, results: Sequence[Result]) -> str:
        """What it is, in one line: right and for what, or what to mend first."""
        return verdict(self.subject, self.roots, results)


LOADS = Property(
    meaning="The file can be imported, and changes nothing and prints nothing when it is.",
    causes=("a missing import", "code that runs at the top of the file"),
)
MAKES = Property(
    meaning="A class, or a function of no arguments, gives something that can be called.",
    causes=(
        "arguments that must be given: hand over an instance",
        "a class that has no __call__ and no forward",
    ),
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
        property = LOADS if loaded.stage == "loading" else MAKES
        findings.append(not_loaded("", property, loaded.problem))
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


def _shut(probe: Probe, what: str, cause: Cause | None = None) -> Door:
    """There is no answer to a plain call: that is all that can be said."""
    name = "check_output_shape_dtype_device"
    finding = failing(name, "plain call", ANSWERS, Seen(what=what), cause)
    return Door(None, (finding,), tuple(probe.notes))


def _door_of(name: str, make: Callable[[], Function], probe: Probe, wishes: Wishes) -> Door:
    if isinstance(probe.function, torch.nn.Module):
        probe.function.eval()
    trying.give_what_it_needs(probe)
    cause = misplaced(probe)
    if cause is not None:
        return _shut(probe, _answer(probe), cause)
    found = find_layout(probe, softmax=wishes.reference != "none", layout=wishes.layout)
    if found is None:
        return _shut(probe, _answer(probe))
    got = probe.tried(probe.sample())
    if got is None:
        return _shut(probe, f"the same call again: {probe.error}")
    if not bool(got.isfinite().all()):
        told, cause = not_finite(probe, got)
        return _shut(probe, f"the output of a plain call holds {told}", cause)
    return _walked_through(name, make, probe, wishes, found)


def _answer(probe: Probe) -> str:
    sample = probe.sample()
    try:
        got = probe.call(sample)
    except Mismatch as mismatch:
        return f"{mismatch.seen.what}; given {sample.describe()}"
    except Exception:
        told = f"it raised {probe.error}; given {sample.describe()}"
        return f"{told}; {OTHER_DOORS}" if "positional arguments but" in probe.error else told
    shape = tuple(got.shape) if isinstance(got, torch.Tensor) else f"a {type(got).__name__}"
    expected = (*sample.q.shape[:3], sample.v.shape[3])
    return f"the output is {shape}, expected a tensor of shape {expected}"


def _walked_through(
    name: str, make: Callable[[], Function], probe: Probe, wishes: Wishes, found: Found
) -> Door:
    matched = found.flow
    flow = _flow(probe, matched, wishes)
    right = matched == flow
    roots: list[Root] = []
    scale = None
    for note in _asked_for(wishes):
        probe.say(note)
    if wishes.reference != "none" and not right:
        roots.append(_no_softmax(probe, found, flow))
        scale = found.cause.scale if found.cause else None
    calling = Calling(
        flow=flow,
        layout=found.layout,
        layout_told=wishes.layout is not None,
        meddles=trying.meddles(probe),
        in_tuple=_in_tuple(probe),
        scale=scale,
        causal_flag=trying.causal_flag(probe, flow),
        given=probe.given,
        mask_needed=probe.open_mask is not None,
    )
    number = scale_of(scale, probe.sample())
    if number is not None and number > 0:
        roots += loud_roots(probe, flow, number)
    calling, known = _masks(probe, calling, wishes, flow if right else None, roots)
    subject = FunctionSubject(name, make, calling)
    subject.has_definition = subject.sees_all = right or scale is not None
    if not subject.has_definition:
        subject.why_no_definition = (
            "--reference none"
            if wishes.reference == "none"
            else f"it is {matched} attention, and was asked for as {flow}"
            if matched is not None
            else "no reference matched"
        )
    small = (probe.length, probe.width) == (6, 8)
    if found.fixed or not small or keeps_its_width(probe, flow if right else None):
        subject.width = probe.width
    claim(subject, probe, known, softmax=wishes.reference != "none")
    subject.notes = tuple(probe.notes)
    return Door(subject, tuple(root.check for root in roots), subject.notes, tuple(roots))


def _no_softmax(probe: Probe, found: Found, flow: Flow) -> Root:
    """The finding that it is not the softmax attention that it should be."""
    cause = found.cause
    if found.flow is not None:
        what = f"asked for as {flow}, but it is {found.flow} softmax attention"
        if flow == "causal":
            cause = Cause(name="there is no causal mask", write=CAUSAL)
    elif cause is not None:
        what = f"{cause.name} ({cause.seen})"
        if cause.scale is not None:
            probe.say("the other checks are made as if that scale were meant")
    else:
        what = f"neither full nor causal softmax attention: {nearest(probe)}"
    seen = _worst(probe, flow, what)
    check = failing("check_matches_reference", "softmax", IS_SOFTMAX, seen, cause)
    explains = explains_values
    if cause is not None and cause.scale is not None:
        explains = explains_nothing
    elif cause is RANDOM:
        explains = explains_all
    return Root(check, explains, what if cause is None else cause.name)


def _worst(probe: Probe, flow: Flow, what: str) -> Seen:
    """Where the output is farthest from what it should be."""
    sample = probe.sample()
    got = probe.tried(sample)
    assert got is not None
    expected = softmax_of(sample, triangle(*sample.lengths) if flow == "causal" else None)
    error = (got.detach().double() - expected).abs()
    index = tuple(int(x) for x in torch.unravel_index(error.argmax(), error.shape))
    return Seen(
        what=what,
        given=sample.describe(),
        index=index,
        got=float(got[index]),
        expected=float(expected[index]),
        tolerance=LOOSE * float(expected.abs().max()),
    )


def _masks(
    probe: Probe, calling: Calling, wishes: Wishes, known: Flow | None, roots: list[Root]
) -> tuple[Calling, Flow | None]:
    """How it takes masks, and what is wrong with them."""
    try:
        calling = find_mask(probe, calling, name=wishes.mask_arg, true_means=wishes.true_means)
    except CheckFailure as failure:
        check = failing(failure.check, "mask argument", failure.property, failure.seen)
        roots.append(Root(check, explains_masks, failure.seen.what))
    calling = dataclasses.replace(
        calling,
        polarity_told=wishes.true_means is not None,
        adds_floats=adds_floats(probe, calling, known),
        flag_with_mask=takes_flag_with_mask(probe, calling),
    )
    if known is not None:
        roots += causes_of(probe, calling, known)
    return calling, known


def _asked_for(wishes: Wishes) -> Iterator[str]:
    """What was said, and is not found out."""
    if wishes.causal:
        yield "asked for: causal (--causal)"
    if wishes.mask_arg:
        yield f"asked for: masks go to {wishes.mask_arg} (--mask-arg)"
    if wishes.true_means:
        meant = "is masked" if wishes.true_means == "mask" else "may attend"
        yield f"asked for: True {meant} (--true-means {wishes.true_means})"
    if wishes.layout:
        yield f"asked for: inputs as {ORDERS[wishes.layout].name} (--layout {wishes.layout})"
    if wishes.reference == "none":
        yield "asked for: no reference (--reference none)"


def _in_tuple(probe: Probe) -> bool:
    sample = probe.sample()
    with probe.guarded():
        tensors = (sample.q.clone(), sample.k.clone(), sample.v.clone())
        got = probe.layout.call(probe.function, tensors, probe.full(sample, {}))
    if not isinstance(got, tuple | list):
        return False
    probe.say(f"it gives {len(got)} things: the first is taken for the output")
    return True


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
