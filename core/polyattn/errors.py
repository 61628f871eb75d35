"""What polyattn raises. One base class; every message says what was asked, what is allowed, and
the way out. Imports no torch, so that listing plugins stays quick."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polyattn.capabilities import Refusal


class PolyattnError(Exception):
    """Base of everything that polyattn raises on purpose."""


class ConfigError(PolyattnError, ValueError):
    """An option, a config or a manifest that says something it may not say."""


class UnknownName(PolyattnError, ValueError):
    """A name that no variant, operation or preset has."""


class NameClash(PolyattnError, ValueError):
    """A name that two plugins claim; ``distribution:name`` tells them apart."""


class Unavailable(PolyattnError, RuntimeError):
    """A plugin, target or optional package that exists but cannot be used here."""


class MaskError(PolyattnError, ValueError):
    """A mask that contradicts itself or the call it is given to."""


class ShapeError(PolyattnError, ValueError):
    """Tensors that do not fit each other: shape, dtype, device or batch."""


class Unsupported(PolyattnError, ValueError):
    """A call that a variant does not claim to answer.

    ``refusals`` holds each reason as data: the option, its value, what is allowed, the way out.
    """

    def __init__(self, name: str, refusals: Iterable[Refusal]) -> None:
        self.name = name
        self.refusals: tuple[Refusal, ...] = tuple(refusals)
        super().__init__(f"{name} refuses: " + "; ".join(str(r) for r in self.refusals))

    def __reduce__(self) -> tuple[type[Unsupported], tuple[str, tuple[Refusal, ...]]]:
        return type(self), (self.name, self.refusals)


def closest(word: str, known: Iterable[str]) -> str | None:
    """The known word that ``word`` was most likely meant to be, or None if none is near."""
    matches = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return matches[0] if matches else None


def suggestion(word: str, known: Iterable[str]) -> str:
    """``", did you mean 'x'?"`` where some known word is near, else the empty string."""
    match = closest(word, known)
    return f", did you mean {match!r}?" if match else ""
