"""The framework's own parts, checked like anything else: ``polyattn check core/rope``.

A "/" cannot be in a variant's name, so the two never meet. For position modules, masks and states
of your own there are ``position_checks``, ``mask_checks`` and ``state_checks``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType

from polyattn.errors import UnknownName, suggestion
from polyattn.layers.positions import Alibi, Count, Learned, Rotary, Sinusoidal
from polyattn.mask import Mask
from polyattn.testing.generate.parts import mask_checks, position_checks, state_checks
from polyattn.testing.planned import Check
from polyattn.testing.subjects.mask_meanings import MaskSubject
from polyattn.testing.subjects.positions import Counting, DistanceBias, Embedding, Rotation
from polyattn.testing.subjects.states import key_value, recurrent

__all__ = ["PARTS_OF_THE_FRAMEWORK", "checks_of_part", "is_part"]

LONGEST = 64
"""How many positions the learned vectors are built for here."""


def _states() -> Iterator[Check]:
    for subject in (key_value(), key_value(padded=True), key_value(reach=4), recurrent()):
        yield from state_checks(subject)


_PARTS: dict[str, Callable[[], Iterable[Check]]] = {
    "core/mask": lambda: mask_checks(MaskSubject("core/mask", Mask)),
    "core/state": _states,
    "core/count": lambda: position_checks(Counting(name="core/count", start=Count)),
    "core/rope": lambda: position_checks(Rotation(name="core/rope", build=Rotary)),
    "core/alibi": lambda: position_checks(DistanceBias(name="core/alibi", build=Alibi)),
    "core/sinusoidal": lambda: position_checks(
        Embedding(name="core/sinusoidal", build=Sinusoidal, relative=True, waves=10_000.0)
    ),
    "core/learned": lambda: position_checks(
        Embedding(
            name="core/learned",
            build=lambda width: Learned(LONGEST, width),
            max_length=LONGEST,
        )
    ),
}

PARTS_OF_THE_FRAMEWORK: Mapping[str, Callable[[], Iterable[Check]]] = MappingProxyType(_PARTS)
"""What makes the checks of each part, by name."""


def is_part(name: str) -> bool:
    """Whether a name is meant to be one of these, known or not."""
    return name.startswith("core/")


def checks_of_part(name: str) -> list[Check]:
    """The checks of one part of the framework. Raises: UnknownName."""
    if name not in PARTS_OF_THE_FRAMEWORK:
        near = suggestion(name, PARTS_OF_THE_FRAMEWORK)
        known = ", ".join(PARTS_OF_THE_FRAMEWORK)
        raise UnknownName(f"no part of the framework is called {name!r}{near or f'; {known} are'}")
    return list(PARTS_OF_THE_FRAMEWORK[name]())
