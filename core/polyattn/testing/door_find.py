"""Finding out by trying which order of dimensions a function speaks."""

from __future__ import annotations

import dataclasses

from polyattn.testing.door_causes import Cause
from polyattn.testing.door_diagnose import recognised
from polyattn.testing.door_function import Flow
from polyattn.testing.door_layout import LAYOUTS, NATIVE, Layout
from polyattn.testing.door_probe import Probe, flow_of, sizes_it_takes


@dataclasses.dataclass(frozen=True)
class Found:
    """A layout that is answered, the sizes and notes that go with it, and what was seen there."""

    layout: Layout
    length: int
    width: int
    notes: tuple[str, ...]
    flow: Flow | None = None
    cause: Cause | None = None


def find_layout(probe: Probe, *, softmax: bool = True) -> Found | None:
    """Set the probe to the layout that fits best; None where no layout is answered.

    The first in which it is softmax attention; else the first in which what is wrong has a
    name; else the first in which positions are mixed, and heads and samples are not.
    """
    before, errors = len(probe.notes), ""
    answered = []
    for layout in LAYOUTS:
        probe.layout = layout
        if not sizes_it_takes(probe):
            errors = errors or probe.error
            continue
        flow = flow_of(probe) if softmax else None
        found = Found(layout, probe.length, probe.width, tuple(probe.notes[before:]), flow)
        del probe.notes[before:]
        if flow is not None:
            return _settled(probe, found)
        answered.append(found)
    for found in answered if softmax else ():
        _set(probe, found)
        cause = recognised(probe)
        if cause is not None:
            return _settled(probe, dataclasses.replace(found, cause=cause))
    for found in answered:
        _set(probe, found)
        if _mixes_positions(probe):
            return _settled(probe, found)
    if answered:
        return _settled(probe, answered[0])
    probe.layout, probe.error = NATIVE, errors
    return None


def _set(probe: Probe, found: Found) -> None:
    probe.layout, probe.length, probe.width = found.layout, found.length, found.width


def _settled(probe: Probe, found: Found) -> Found:
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
