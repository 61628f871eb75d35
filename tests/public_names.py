"""What users may rely on, by name: ``python -m tests.public_names`` writes public_names.yaml.

A name that is missing there was removed or renamed: see docs/stability.md for what that takes.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
from collections.abc import Iterable
from pathlib import Path

import yaml

import polyattn
from polyattn import config, errors, hookspecs, kit, manifest, spec, testing
from polyattn.cli.app import COMMANDS
from polyattn.cli.check_report import Report
from polyattn.testing import checks
from polyattn.testing.results import Property, Result, Seen, Status

PAGE = Path(__file__).with_name("public_names.yaml")


def current() -> dict[str, list[str]]:
    """Every public name of this checkout, by what it is a name of."""
    failed = Result(id="check_it", status=Status.FAILED)
    found: dict[str, Iterable[str]] = {
        "polyattn": polyattn.__all__,
        "polyattn.kit": _own_functions(kit),
        "polyattn.errors": [
            name
            for name, value in vars(errors).items()
            if isinstance(value, type) and issubclass(value, errors.PolyattnError)
        ],
        "polyattn.testing": testing.__all__,
        "hooks": [name for name in vars(hookspecs) if name.startswith("polyattn_")],
        "manifest": [*manifest._SECTIONS, "comparison"],
        "commands": COMMANDS,
        "check --json": Report("", silent=True).as_json(),
        "check --json, results": [*failed.as_json(), "failure"],
        "check --json, failure": [f.name for kind in (Property, Seen) for f in _fields(kind)],
        "check --json, status": [str(status) for status in Status],
        "checks": _checks(),
    }
    for kind in (spec.VariantSpec, spec.OperationSpec, spec.PresetSpec, spec.ComparisonSpec):
        found[kind.__name__] = [field.name for field in _fields(kind)]
    for name in ("Capabilities", "FeatureMapCapabilities", "Support", "Sizes", "Call", "Refusal"):
        found[name] = [field.name for field in _fields(getattr(polyattn, name))]
    for name in ("SequenceAttention", "FeatureMapAttention", "Mask", "State"):
        found[name] = _members(getattr(polyattn, name))
    for part in ("encoder", "causal_lm", "norm", "feed_forward", "position"):
        found[f"config, {part}"] = _CONFIGS[part].model_fields
    return {part: sorted(set(names)) for part, names in found.items()}


_CONFIGS = {
    "encoder": config.EncoderConfig,
    "causal_lm": config.CausalLMConfig,
    "norm": config.NormConfig,
    "feed_forward": config.FeedForwardConfig,
    "position": config.PositionConfig,
}


def _fields(kind: type) -> Iterable[dataclasses.Field[object]]:
    return dataclasses.fields(kind)  # type: ignore[arg-type]


def _own_functions(module: object) -> list[str]:
    return [
        name
        for name, value in inspect.getmembers(module, inspect.isfunction)
        if not name.startswith("_") and value.__module__ == module.__name__  # type: ignore[attr-defined]
    ]


def _members(cls: type) -> list[str]:
    """Of the class and of the bases that polyattn wrote."""
    return [
        name
        for base in cls.__mro__
        if base.__module__.startswith("polyattn.")
        for name in vars(base)
        if not name.startswith("_")
    ]


def _checks() -> list[str]:
    modules = [
        importlib.import_module(f"{checks.__name__}.{found.name}")
        for found in pkgutil.iter_modules(checks.__path__)
    ]
    return [
        name
        for module in modules
        for name, value in vars(module).items()
        if name.startswith("check_") and hasattr(value, "property")
    ]


def written() -> dict[str, list[str]]:
    """The committed list."""
    found: dict[str, list[str]] = yaml.safe_load(PAGE.read_text(encoding="utf-8"))
    return found


if __name__ == "__main__":
    text = yaml.safe_dump(current(), sort_keys=False)
    PAGE.write_text(
        "# What docs/stability.md promises, by name. Written by `python -m tests.public_names`.\n"
        + text,
        encoding="utf-8",
    )
