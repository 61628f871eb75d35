"""Finding out by trying which order of dimensions a function speaks."""

from __future__ import annotations

import dataclasses

from polyattn.testing.doors.causes import Cause
from polyattn.testing.doors.diagnose import pattern, recognised
from polyattn.testing.doors.function import Flow
from polyattn.testing.doors.layout import LAYOUTS, NATIVE, ORDERS, Layout, Order
from polyattn.testing.doors.probe import Probe, flow_of, sizes_it_takes
from polyattn.testing.doors.reference import LOOSE, distance, softmax_of, triangle
from polyattn.testing.doors.scales import scale_of


@dataclasses.dataclass(frozen=True)
class Found:
    """A layout that is answered, the sizes and notes that go with it, and what was seen there."""

    layout: Layout
    length: int
    width: int
    notes: tuple[str, ...]
    flow: Flow | None = None
    cause: Cause | None = None
    fixed: bool = False
    """It is right at this width alone."""


def find_layout(probe: Probe, *, softmax: bool = True, layout: Order | None = None) -> Found | None:
    """Set the probe to the layout that fits best; None where no layout is answered.

    layout: the only one that is tried, where the user names it.

    Four dimensions before fewer: the first in which it is softmax attention, then the first in
    which what is wrong has a name; else the first in which positions are mixed, and heads and
    samples are not.
    """
    answered: list[Found] = []
    error = ""
    tried = (LAYOUTS[:4], LAYOUTS[4:]) if layout is None else ((ORDERS[layout],),)
    for layouts in tried:
        here = []
        for one in layouts:
            found = _answered(probe, one, softmax)
            error = error or probe.error
            if found is not None and found.flow is not None:
                return _settled(probe, found)
            here += [] if found is None else [found]
        # What four dimensions answer without a name is not searched for in fewer: it takes seconds.
        for look in (recognised, pattern) if softmax and not answered else ():
            for found in here:
                _set(probe, found)
                cause = look(probe)
                if cause is not None:
                    found = _at_its_width(probe, dataclasses.replace(found, cause=cause))
                    return _settled(probe, found, LAYOUTS[4:] if layouts == LAYOUTS[:4] else ())
        answered += here
    for found in answered:
        _set(probe, found)
        if _mixes_positions(probe):
            return _settled(probe, found)
    if answered:
        return _settled(probe, answered[0])
    probe.layout, probe.error = NATIVE, error
    return None


def _answered(probe: Probe, layout: Layout, softmax: bool) -> Found | None:
    """What it answers in this layout, and whether that is softmax attention."""
    before = len(probe.notes)
    probe.layout = layout
    if not sizes_it_takes(probe):
        return None
    flow = flow_of(probe) if softmax else None
    found = Found(layout, probe.length, probe.width, tuple(probe.notes[before:]), flow)
    del probe.notes[before:]
    return found


def _at_its_width(probe: Probe, found: Found) -> Found:
    """The same at the width for which its scale is right, where its scale is a constant."""
    scale = scale_of(found.cause.scale if found.cause else None, probe.sample())
    if scale is None or scale <= 0:
        return found
    width = round(scale**-2)
    if not 8 <= width <= 256 or abs(scale**-2 - width) > 1e-3 * width:
        return found
    probe.width = width
    flow = flow_of(probe)
    if flow is None:
        probe.width = found.width
        return found
    note = f"its scale is {scale:.4g} for every width: right for D = {width}, and checked there"
    notes = (*found.notes, note)
    return Found(found.layout, found.length, width, notes, flow, fixed=True)


def keeps_its_width(probe: Probe, flow: Flow | None) -> bool:
    """Whether it is right at the width that was found and at no other; without a flow, answered."""
    sample = probe.sample(width=probe.width + 4)
    keep = triangle(*sample.lengths) if flow == "causal" else None
    got = probe.tried(sample)
    if got is None:
        probe.say(f"it takes no other width than {probe.width} ({probe.error}): checked there")
        return True
    scale = probe.width**-0.5
    if flow is not None and distance(got, softmax_of(sample, keep, scale=scale)) < LOOSE:
        probe.say(
            f"its scale is {scale:.4g} for every width: right for D = {probe.width}, "
            f"and checked there"
        )
        return True
    return False


def _set(probe: Probe, found: Found) -> None:
    probe.layout, probe.length, probe.width = found.layout, found.length, found.width


def _settled(probe: Probe, found: Found, others: tuple[Layout, ...] = ()) -> Found:
    """``others``: layouts in which it may be right, where it is not in this one."""
    for layout in others if found.flow is None else ():
        other = _answered(probe, layout, softmax=True)
        if other is not None and other.flow is not None:
            probe.say(
                f"as a function of {layout.name} it would be right, as {other.flow} attention"
            )
            break
    _set(probe, found)
    for note in found.notes:
        probe.say(note)
    if not found.layout.native:
        probe.say(
            f"it reads its inputs as {found.layout.name}, and is checked in that order; where "
            f"(B, H, L, D) was meant, a transpose is missing"
        )
    return found


def _mixes_positions(probe: Probe) -> bool:
    """Whether a value reaches other positions, and no other head and no other sample."""
    sample = probe.sample(heads=3)
    before = probe.tried(sample)
    changed = sample.v.clone()
    changed[0, 1, 1] += 1.0
    after = probe.tried(sample.having(v=changed))
    if before is None or after is None:
        return False
    moved = (after - before).detach().abs().amax(-1) > 1e-6
    own = moved[0, 1].clone()
    own[1] = False
    moved[0, 1] = False
    return bool(own.any()) and not bool(moved.any())
