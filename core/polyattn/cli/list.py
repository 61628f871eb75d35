"""``polyattn list``: every name, who brings it, and what cannot be used. No torch, no pydantic."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from polyattn.cli import tables
from polyattn.cli.printable import printable
from polyattn.registry import Entry, Registry, discover
from polyattn.spec import OperationSpec, PresetSpec, VariantSpec


def list_names(*, as_json: bool = False) -> None:
    """Print every name that there is, and the plugins that failed."""
    registry = discover()
    if as_json:
        print(json.dumps(_data(registry), indent=2))
        return
    _print(registry)


def _data(registry: Registry) -> dict[str, Any]:
    names = zip(registry.names(), registry.entries, strict=True)
    return {
        "names": [
            {
                "name": name,
                "kind": kind(entry),
                "summary": summary(entry),
                "distribution": entry.distribution,
                "plugin": entry.label,
                "unavailable": entry.reason or None,
            }
            for name, entry in names
        ],
        "failed": [{"plugin": p.label, "reason": p.reason} for p in registry.unavailable],
    }


def _print(registry: Registry) -> None:
    console = tables.console()
    if registry.entries:
        titles = ("name", "kind", "what it is", "from")
        tables.show(console, titles, _rows(registry))
    for plugin in registry.unavailable:
        told = printable(f"failed: {plugin.label}: {plugin.reason}")
        console.print(told, style="red", markup=False)
    if not registry.entries and not registry.unavailable:
        console.print("no plugin found; for a checkout: make")


def _rows(registry: Registry) -> Iterator[tuple[str, ...]]:
    for name, entry in zip(registry.names(), registry.entries, strict=True):
        yield name, kind(entry), summary(entry), entry.distribution
        if entry.reason:
            yield "", "", f"unavailable: {entry.reason}", ""


def kind(entry: Entry) -> str:
    """What an entry is, in one or two words."""
    if isinstance(entry.spec, OperationSpec):
        return "operation"
    if isinstance(entry.spec, PresetSpec):
        return "preset"
    return "feature map" if entry.spec.kind == "feature_map" else "sequence"


def summary(entry: Entry) -> str:
    """The entry's own words; for a preset or a member, also what it stands for."""
    spec = entry.spec
    if isinstance(spec, PresetSpec):
        options = ", ".join(f"{key} {value}" for key, value in spec.options.items())
        said = f"{spec.variant} with {options}" if options else spec.variant
        return f"{spec.summary} ({said})" if spec.summary else said
    if isinstance(spec, VariantSpec) and spec.operation:
        return f"{spec.summary} (implements {spec.operation})".lstrip()
    return spec.summary
