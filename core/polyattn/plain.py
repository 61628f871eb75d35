"""Between the values of options and plain data, which has lists alone for tuples and frozensets,
and no enums."""

from __future__ import annotations

import collections.abc
from collections.abc import Iterable, Mapping
from enum import Enum
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

__all__ = ["from_data", "to_data"]

_SETS = (frozenset, collections.abc.Set)


def from_data(value: Any, annotation: Any) -> Any:
    """The value as the annotation wants it: lists as tuples or frozensets, enums from their values.

    What it does not want stays as it is, for the validation that follows to refuse.
    Raises: ValueError for a list that repeats an element of a set, and for no value of an enum.
    """
    # What stands behind `type Name = ...`, where Python is new enough to have it.
    annotation = getattr(annotation, "__value__", annotation)
    origin = get_origin(annotation) or annotation
    arguments = get_args(annotation)
    if origin is Annotated:
        return from_data(value, arguments[0])
    if origin in (Union, UnionType):
        return _as_one_of(value, arguments)
    if origin is tuple and isinstance(value, list | tuple):
        return _as_tuple(value, arguments)
    if origin in _SETS and isinstance(value, list | frozenset):
        return _as_set(value, arguments[0] if arguments else Any)
    if isinstance(origin, type) and issubclass(origin, Enum):
        return _as_member(value, origin)
    return value


def to_data(value: Any) -> Any:
    """A copy made of dicts, lists, text, numbers, flags and None; sets in the same order always."""
    if isinstance(value, Enum):
        return to_data(value.value)
    if isinstance(value, Mapping):
        return {to_data(key): to_data(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [to_data(entry) for entry in value]
    if isinstance(value, set | frozenset):
        return _sorted(to_data(entry) for entry in value)
    return value


def _sorted(entries: Iterable[Any]) -> list[Any]:
    found = list(entries)
    try:
        return sorted(found)
    except TypeError:  # text beside numbers
        return sorted(found, key=repr)


def _as_one_of(value: Any, choices: tuple[Any, ...]) -> Any:
    if type(value) in choices:
        return value
    complaints = []
    others = [choice for choice in choices if choice is not type(None)]
    for choice in others:
        try:
            wanted = from_data(value, choice)
        except ValueError as error:
            complaints.append(error)
            continue
        if wanted is not value:
            return wanted
    if len(complaints) == len(others):
        raise complaints[0]
    return value


def _as_tuple(value: list[Any] | tuple[Any, ...], arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(arguments) == 2 and arguments[1] is ...:
        arguments = (arguments[0],) * len(value)
    elif len(arguments) != len(value):
        return tuple(value)
    return tuple(from_data(entry, wanted) for entry, wanted in zip(value, arguments, strict=True))


def _as_set(value: list[Any] | frozenset[Any], wanted: Any) -> Any:
    entries = [from_data(entry, wanted) for entry in value]
    try:
        found = frozenset(entries)
    except TypeError:  # an element that no set can hold
        return value
    if len(found) < len(entries):
        twice = next(entry for entry in entries if entries.count(entry) > 1)
        raise ValueError(f"expected every element once, got {to_data(twice)!r} twice")
    return found


def _as_member(value: Any, kind: type[Enum]) -> Any:
    if isinstance(value, kind):
        return value
    for member in kind:
        # True is not 1, as everywhere in options.
        if type(to_data(member)) is type(value) and to_data(member) == value:
            return member
    known = ", ".join(repr(to_data(member)) for member in kind)
    raise ValueError(f"expected one of {known}")
