"""Manifests: a plugin's descriptors as YAML, and the user's own file of the same format. No torch.

::

    operations: {meaning: {config: "package.module:Config", prefer: [fast, plain]}}
    variants:   {fast: {target: "package.module:Fast", operation: meaning}}
    presets:    {small: {variant: fast, options: {width: 8}}}
    comparison: {variants: [meaning, fast], baseline: meaning}
"""

from __future__ import annotations

import importlib.resources
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from polyattn import strict_yaml
from polyattn.errors import ConfigError, suggestion
from polyattn.spec import (
    ComparisonSpec,
    OperationSpec,
    PresetSpec,
    Spec,
    SpecError,
    VariantSpec,
)

RESOURCE = "registry.yaml"

_SECTIONS: Mapping[str, type[OperationSpec | VariantSpec | PresetSpec]] = {
    "operations": OperationSpec,
    "variants": VariantSpec,
    "presets": PresetSpec,
}
_LINK = re.compile(r"(\.\./)+[\w./-]+")


@dataclass(frozen=True, kw_only=True)
class UserFile:
    """What a user adds to the plugins: presets, preferred members of operations, a comparison."""

    source: str = ""
    presets: tuple[PresetSpec, ...] = ()
    prefer: Mapping[str, tuple[str, ...]]
    comparison: ComparisonSpec | None = None


def read_manifest(package: str, resource: str = RESOURCE) -> Iterator[Spec]:
    """Yield the descriptors in a manifest that lies inside a package.

    For a plugin's hook: ``yield from polyattn.read_manifest(__name__)``.

    Raises:
        ConfigError: the manifest is missing or says something it may not; names file and key.
    """
    source = f"{package}/{resource}"
    try:
        text = importlib.resources.files(package).joinpath(resource).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, ModuleNotFoundError) as error:
        raise ConfigError(f"{source}: expected a manifest: {error}") from error
    if _LINK.fullmatch(text.strip()):
        raise ConfigError(
            f"{source}: expected a manifest, got the text of a symbolic link, {text.strip()!r}: "
            "this checkout was made without links; run `git config core.symlinks true && "
            "git checkout -- .`, or install a wheel"
        )
    return iter(parse(strict_yaml.load(text, source), source))


def read_user_file(path: Path) -> UserFile:
    """What the user's own file says. It names variants and options, never code to import.

    Raises:
        ConfigError: the file is missing or says something it may not; names file and key.
    """
    source = str(path)
    data = _mapping(strict_yaml.read(path), source, "the file")
    prefer = {}
    operations = _mapping(data.get("operations"), source, "operations")
    for name, body in operations.items():
        place = f"operations.{name}"
        body = _mapping(body, source, place)
        _known_keys(body, ("prefer",), source, place, "; a user's file may only prefer members")
        names = body.get("prefer", [])
        if not isinstance(names, list) or not all(isinstance(item, str) for item in names):
            raise ConfigError(f"{source}: {place}.prefer: expected a list of names, got {names!r}")
        prefer[name] = tuple(names)
    way_out = "; variants come from plugins" if "variants" in data else ""
    _known_keys(data, ("operations", "presets", "comparison"), source, "", way_out)
    rest = {key: value for key, value in data.items() if key != "operations"}
    specs = parse(rest, source)
    presets = tuple(spec for spec in specs if isinstance(spec, PresetSpec))
    comparison = next((spec for spec in specs if isinstance(spec, ComparisonSpec)), None)
    return UserFile(source=source, presets=presets, prefer=prefer, comparison=comparison)


def parse(data: object, source: str) -> tuple[Spec, ...]:
    """The descriptors of a manifest's plain data; ``source`` names it in errors."""
    data = _mapping(data, source, "the manifest")
    _known_keys(data, (*_SECTIONS, "comparison"), source, "")
    specs: list[Spec] = []
    for section, kind in _SECTIONS.items():
        for name, body in _mapping(data.get(section), source, section).items():
            place = f"{section}.{name}"
            body = _mapping(body, source, place)
            specs.append(_spec(kind, {"name": name}, body, source, place))
    if data.get("comparison") is not None:
        body = _mapping(data["comparison"], source, "comparison")
        specs.append(_spec(ComparisonSpec, {}, body, source, "comparison"))
    return tuple(specs)


def _spec(
    kind: type[Spec], given: Mapping[str, Any], body: Mapping[str, Any], source: str, place: str
) -> Spec:
    wanted = [item for item in fields(kind) if item.name not in given]
    _known_keys(body, tuple(item.name for item in wanted), source, place)
    for item in wanted:
        optional = item.default is not MISSING or item.default_factory is not MISSING
        if item.name not in body and not optional:
            raise ConfigError(
                f"{source}: {place}: expected the key {item.name!r}, which is missing"
            )
    try:
        return kind(**given, **body)
    except SpecError as error:
        raise ConfigError(f"{source}: {place}.{error.detail}") from None


def _mapping(value: object, source: str, place: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"{source}: {place}: expected a mapping, got {type(value).__name__} {value!r:.60}"
        )
    return value


def _known_keys(
    body: Mapping[str, Any], known: tuple[str, ...], source: str, place: str, way_out: str = ""
) -> None:
    for key in body:
        if key not in known:
            path = f"{place}.{key}" if place else key
            hint = way_out or suggestion(key, known) or f"; known: {', '.join(known)}"
            raise ConfigError(f"{source}: {path}: unknown key{hint}")
