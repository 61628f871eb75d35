"""Descriptors: what a plugin says about itself before any of it is imported. No torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, get_args

from polyattn.errors import ConfigError, suggestion

API = 1
"""The number of the contract that this version of polyattn speaks."""

OLDEST_API = 1
"""The number of the oldest contract whose plugins this version still takes."""

Kind = Literal["sequence", "feature_map"]

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_TARGET = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


@dataclass(frozen=True, kw_only=True)
class VariantSpec:
    """An implementation of attention.

    ``target`` is ``"package.module:Class"`` and is imported only when the variant is used.
    ``operation`` names the meaning that it implements, where it shares one with others.
    ``requires`` names optional packages, as they are imported: where one is missing, the variant
    is listed as unavailable. ``api`` is the contract it was written for.
    """

    name: str
    target: str
    kind: Kind = "sequence"
    summary: str = ""
    paper: str = ""
    api: int = API
    operation: str | None = None
    requires: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_name(self, self.name)
        _check_target(self, "target", self.target)
        if self.kind not in get_args(Kind):
            way_out = suggestion(str(self.kind), get_args(Kind))
            kinds = " or ".join(repr(kind) for kind in get_args(Kind))
            raise _wrong(self, "kind", kinds, self.kind, way_out)
        _check_texts(self, "summary", "paper")
        if type(self.api) is not int or self.api < 1:
            raise _wrong(self, "api", "the number of a contract, counted from 1", self.api)
        if self.operation is not None:
            _check_name(self, self.operation, "operation")
        _keep_texts(self, "requires")


@dataclass(frozen=True, kw_only=True)
class OperationSpec:
    """A meaning that several variants implement, and the order in which they are asked.

    ``config`` is the ``"package.module:Class"`` of the options that the members share. Members
    that ``prefer`` does not name come after those that it does.
    """

    name: str
    config: str
    prefer: tuple[str, ...] = ()
    summary: str = ""

    def __post_init__(self) -> None:
        _check_name(self, self.name)
        _check_target(self, "config", self.config)
        _keep_texts(self, "prefer")
        _check_texts(self, "summary")


@dataclass(frozen=True, kw_only=True)
class PresetSpec:
    """A name for a variant (or an operation) with options."""

    name: str
    variant: str
    options: Mapping[str, Any] = field(default_factory=dict)
    summary: str = ""

    def __post_init__(self) -> None:
        _check_name(self, self.name)
        _check_texts(self, "variant", "summary")
        if not self.variant:
            raise _wrong(self, "variant", "the name of a variant", self.variant)
        options = self.options
        if not isinstance(options, Mapping) or not all(isinstance(key, str) for key in options):
            raise _wrong(self, "options", "a mapping from names to values", options)
        object.__setattr__(self, "options", MappingProxyType(dict(options)))


@dataclass(frozen=True, kw_only=True)
class ComparisonSpec:
    """What ``polyattn compare`` runs when nothing was named, and what it measures against."""

    variants: tuple[str, ...]
    baseline: str

    def __post_init__(self) -> None:
        _keep_texts(self, "variants")
        _check_texts(self, "baseline")
        if self.baseline not in self.variants:
            among = f"one of the variants ({', '.join(self.variants)})"
            raise _wrong(self, "baseline", among, self.baseline)


Spec = VariantSpec | OperationSpec | PresetSpec | ComparisonSpec


class SpecError(ConfigError):
    """A descriptor that says something it may not say: ``detail`` is the key and what is wrong."""

    def __init__(self, owner: str, detail: str) -> None:
        super().__init__(owner, detail)
        self.owner, self.detail = owner, detail

    def __str__(self) -> str:
        return f"{self.owner}: {self.detail}"


def _wrong(spec: Spec, key: str, expected: str, value: object, way_out: str = "") -> SpecError:
    name = getattr(spec, "name", None)
    owner = f"{type(spec).__name__} {name!r}" if isinstance(name, str) else type(spec).__name__
    return SpecError(owner, f"{key}: expected {expected}, got {value!r}{way_out}")


def _check_name(spec: Spec, name: object, key: str = "name") -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        rule = "a name of small letters, digits and '_', starting with a letter"
        raise _wrong(spec, key, rule, name)


def _check_target(spec: Spec, key: str, target: object) -> None:
    if not isinstance(target, str) or not _TARGET.fullmatch(target):
        raise _wrong(spec, key, "'package.module:Class'", target)


def _check_texts(spec: Spec, *keys: str) -> None:
    for key in keys:
        if not isinstance(getattr(spec, key), str):
            raise _wrong(spec, key, "text", getattr(spec, key))


def _keep_texts(spec: Spec, key: str) -> None:
    """Check a list of texts and freeze it, so that a manifest's list is as good as a tuple."""
    value = getattr(spec, key)
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise _wrong(spec, key, "a list of names", value)
    object.__setattr__(spec, key, tuple(value))
