"""Which methods of an object run while a call lasts, by whatever way they are reached."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType

from torch import nn


@contextmanager
def methods_watched(owners: Iterable[nn.Module], names: Iterable[str]) -> Iterator[list[str]]:
    """The names of those methods of ``owners``, or of copies of them, that run meanwhile.

    Asked of the interpreter: the same method may be called on the object, on its class, on a base
    class or on a copy.
    """
    owners, names = tuple(owners), tuple(names)
    kinds = tuple({type(owner) for owner in owners})
    codes = {code: name for kind in kinds for code, name in _codes(kind, names)}
    ran: list[str] = []

    def watch(frame: FrameType, event: str, argument: object) -> None:
        name = codes.get(frame.f_code) if event == "call" else None
        if name is not None and isinstance(_receiver(frame), kinds):
            ran.append(name)

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        yield ran
    finally:
        sys.setprofile(before)


def _codes(kind: type, names: Iterable[str]) -> Iterator[tuple[CodeType, str]]:
    """The code of each of these methods, in the class and in those it inherits from."""
    for cls in kind.__mro__:
        if cls in (nn.Module, object):
            continue
        for name in names:
            function = inspect.unwrap(vars(cls).get(name))  # type: ignore[arg-type]
            code = getattr(function, "__code__", None)
            if code is not None:
                yield code, name


def _receiver(frame: FrameType) -> object:
    """What the method was called on."""
    code = frame.f_code
    return frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
