"""Discovery: which names there are, who brought them, and what could not be loaded. No torch.

pluggy's own loader drops a second plugin of the same entry-point name in silence, dies on an
import error, and lets one raising hook end the call for all. So the entry points are scanned here,
and each plugin is loaded, called and checked alone.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polyattn.errors import ConfigError, NameClash, Unavailable, UnknownName, closest, suggestion
from polyattn.loader import BrokenPlugin, Plugin, load_plugins
from polyattn.manifest import UserFile, read_manifest, read_user_file
from polyattn.spec import ComparisonSpec, OperationSpec, PresetSpec, VariantSpec

__all__ = ["BrokenPlugin", "Entry", "Registry", "discover", "load_target", "read_manifest"]

USER_FILE = "POLYATTN_REGISTRY"
"""The environment variable that names the user's own file."""

NO_PLUGINS = "POLYATTN_NO_PLUGINS"
"""The environment variable that, set to anything, blocks other distributions' plugins."""

USER = "user"
"""The distribution under which the user's own file is listed."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A name that can be asked for. ``reason`` says why it cannot be used here, if it cannot."""

    spec: VariantSpec | OperationSpec | PresetSpec
    distribution: str
    label: str
    reason: str = ""

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def full_name(self) -> str:
        return f"{self.distribution}:{self.spec.name}"


@dataclass(frozen=True, kw_only=True)
class Registry:
    """Every name that plugins and the user's file bring, and every plugin that failed.

    Immutable. Mappings are keyed by the name, or by ``distribution:name`` where two
    distributions claim it.
    """

    entries: tuple[Entry, ...] = ()
    unavailable: tuple[BrokenPlugin, ...] = ()
    comparison: ComparisonSpec | None = None
    user: UserFile = field(default_factory=lambda: UserFile(prefer={}))

    @functools.cached_property
    def variants(self) -> Mapping[str, Entry]:
        return self._of(VariantSpec)

    @functools.cached_property
    def operations(self) -> Mapping[str, Entry]:
        return self._of(OperationSpec)

    @functools.cached_property
    def presets(self) -> Mapping[str, Entry]:
        return self._of(PresetSpec)

    @functools.cached_property
    def _by_name(self) -> Mapping[str, tuple[Entry, ...]]:
        groups: dict[str, tuple[Entry, ...]] = {}
        for entry in self.entries:
            groups[entry.name] = (*groups.get(entry.name, ()), entry)
        return groups

    def _of(self, kind: type) -> Mapping[str, Entry]:
        return {self._key(item): item for item in self.entries if isinstance(item.spec, kind)}

    def _key(self, entry: Entry) -> str:
        return entry.name if len(self._by_name[entry.name]) == 1 else entry.full_name

    def names(self) -> tuple[str, ...]:
        """Every name that :meth:`find` knows, those that cannot be used included."""
        return tuple(self._key(entry) for entry in self.entries)

    def find(self, name: str) -> Entry:
        """The entry of a name, or of ``distribution:name``.

        Raises:
            UnknownName: nobody brings it; says the known names, the closest one, and which
                plugins failed to load.
            NameClash: two distributions bring it.
            Unavailable: it exists and cannot be used here.
        """
        distribution, _, bare = name.rpartition(":")
        found = self._by_name.get(bare, ())
        if distribution:
            found = tuple(entry for entry in found if entry.distribution == distribution)
            failed = [p for p in self.unavailable if p.label.split(":")[0] == distribution]
            if not found and failed:
                reasons = "; ".join(f"{plugin.label}: {plugin.reason}" for plugin in failed)
                raise Unavailable(f"{name!r} cannot be used, its plugin failed: {reasons}")
        if not found:
            raise UnknownName(self._unknown(name))
        if len(found) > 1:
            raise NameClash(_clash(bare, found))
        if found[0].reason:
            raise Unavailable(f"{name!r} cannot be used: {found[0].reason}")
        return found[0]

    def near(self, name: str) -> str | None:
        """The nearest name that is no member of an operation; None where none is near."""
        return closest(name, [n for n in self.names() if n != name and not self.operation_of(n)])

    def operation_of(self, name: str) -> str | None:
        """The operation that a variant implements, if it does; None for all other names."""
        found = [entry for entry in self.entries if name in (entry.name, entry.full_name)]
        return _operation_of(found[0]) if len(found) == 1 else None

    def members(self, operation: str) -> tuple[Entry, ...]:
        """The usable variants that implement an operation, in the order in which they are asked.

        First those that the user prefers, then those that the operation prefers, then the rest.

        Raises:
            ConfigError: the user prefers a name that is no member.
        """
        owner = self.find(operation)
        if not isinstance(owner.spec, OperationSpec):
            known = ", ".join(self.operations) or "none"
            raise ConfigError(f"{operation!r} is no operation; operations: {known}")
        every = [entry for entry in self.entries if _operation_of(entry) == owner.name]
        preferred = self._preferred(owner.name, every)
        order = (*preferred, *owner.spec.prefer)

        def rank(entry: Entry) -> tuple[int, bool, str, str]:
            places = [i for i, n in enumerate(order) if n in (entry.name, entry.full_name)]
            stranger = entry.distribution != owner.distribution
            place = places[0] if places else len(order)
            return place, stranger, entry.distribution, entry.name

        return tuple(sorted((entry for entry in every if not entry.reason), key=rank))

    def _preferred(self, operation: str, members: list[Entry]) -> tuple[str, ...]:
        names = self.user.prefer.get(operation, ())
        known = [name for entry in members for name in (entry.name, entry.full_name)]
        for name in names:
            if name not in known:
                raise ConfigError(
                    f"{self.user.source}: operations.{operation}.prefer: no member is called "
                    f"{name!r}{suggestion(name, known)}; members: "
                    f"{', '.join(entry.name for entry in members)}{self._failures()}"
                )
        return names

    def _unknown(self, name: str) -> str:
        if not self.entries and not self.unavailable:
            return f"unknown name {name!r}: no plugin found; for a checkout: `make`"
        listing = ", ".join(self.names()) or "none"
        hint = self._suggested(name)
        rest = self._failures() or (
            "" if hint else "; if a plugin brings it, install that one here"
        )
        return f"unknown name {name!r}{hint}; known: {listing}{rest}"

    def _suggested(self, name: str) -> str:
        """The nearest name. A member of an operation is seldom what was meant: what can be asked
        for by itself comes first."""
        near = closest(name, self.names())
        operation = None if near is None else self.operation_of(near)
        if near is None or operation is None:
            return suggestion(name, self.names())
        other = self.near(near)
        first = f"{other!r}, or " if other else ""
        return f", did you mean {first}{near!r}, a member of {operation!r}?"

    def _failures(self) -> str:
        if not self.unavailable:
            return ""
        failed = "; ".join(f"{plugin.label} ({plugin.reason})" for plugin in self.unavailable)
        return f"; plugins that failed: {failed}"


def discover(*, plugins: bool = True) -> Registry:
    """Every name that the installed plugins and the user's own file bring.

    ``plugins=False``, or the environment variable ``POLYATTN_NO_PLUGINS``, leaves out other
    distributions than polyattn itself: their hooks do not run.

    Raises:
        ConfigError: the user's own file says something it may not.
    """
    blocked = not plugins or bool(os.environ.get(NO_PLUGINS))
    return _scan(not blocked, _user_path())


@functools.cache
def _scan(strangers: bool, user_path: Path | None) -> Registry:
    user = read_user_file(user_path) if user_path else UserFile(prefer={})
    plugins = load_plugins(strangers=strangers)
    entries = [*_entries(plugins), *_user_entries(user)]
    comparison, problems = _comparison(plugins, user)
    failed = [broken for plugin in plugins for broken in plugin.failures]
    return Registry(
        entries=tuple(entries),
        unavailable=(*failed, *problems, *_unknown_operations(entries, user)),
        comparison=comparison,
        user=user,
    )


def _user_path() -> Path | None:
    named = os.environ.get(USER_FILE)
    if named is not None:
        return Path(named) if named else None
    base = os.environ.get("XDG_CONFIG_HOME") or Path("~/.config").expanduser()
    default = Path(base) / "polyattn" / "registry.yaml"
    return default if default.exists() else None


def _entries(plugins: tuple[Plugin, ...]) -> Iterator[Entry]:
    for plugin in plugins:
        for spec, reason in plugin.specs:
            if not isinstance(spec, ComparisonSpec):
                yield Entry(
                    spec=spec,
                    distribution=plugin.distribution,
                    label=plugin.label,
                    reason=reason,
                )


def _user_entries(user: UserFile) -> Iterator[Entry]:
    for preset in user.presets:
        yield Entry(spec=preset, distribution=USER, label=user.source)


def _comparison(
    plugins: tuple[Plugin, ...], user: UserFile
) -> tuple[ComparisonSpec | None, list[BrokenPlugin]]:
    """The comparison to use: the user's, or the first plugin's; a second one is a failure."""
    offers = [
        (plugin.label, spec)
        for plugin in plugins
        for spec, _ in plugin.specs
        if isinstance(spec, ComparisonSpec)
    ]
    problems = [
        BrokenPlugin(label, f"comparison: {offers[0][0]} already brings one; leave it out")
        for label, _ in offers[1:]
    ]
    return user.comparison or (offers[0][1] if offers else None), problems


def _unknown_operations(entries: list[Entry], user: UserFile) -> Iterator[BrokenPlugin]:
    known = {entry.name for entry in entries if isinstance(entry.spec, OperationSpec)}
    for entry in entries:
        operation = _operation_of(entry)
        if operation is not None and operation not in known:
            hint = suggestion(operation, known)
            yield BrokenPlugin(entry.label, f"{entry.name}: unknown operation {operation!r}{hint}")
    for operation in user.prefer:
        if operation not in known:
            hint = suggestion(operation, known)
            yield BrokenPlugin(user.source, f"operations.{operation}: unknown operation{hint}")


def _operation_of(entry: Entry) -> str | None:
    return entry.spec.operation if isinstance(entry.spec, VariantSpec) else None


def _clash(name: str, found: tuple[Entry, ...]) -> str:
    owners = sorted({entry.distribution for entry in found})
    if len(owners) == 1:
        labels = " and ".join(sorted({entry.label for entry in found}))
        return f"{name!r} is declared {len(found)} times by {labels}; rename all but one"
    ways = " or ".join(repr(f"{owner}:{name}") for owner in owners)
    return f"{name!r} is claimed by the distributions {' and '.join(owners)}; ask for {ways}"


def load_target(target: str) -> Any:
    """The object that ``"package.module:Class"`` names.

    Raises:
        Unavailable: it cannot be imported, or the module has no such name.
    """
    module_name, _, path = target.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise Unavailable(f"{target!r} cannot be imported: {reason}") from error
    try:
        return functools.reduce(getattr, path.split("."), module)
    except AttributeError:
        known = [name for name in vars(module) if not name.startswith("_")]
        hint = suggestion(path, known)
        raise Unavailable(f"{target!r}: the module has no {path!r}{hint}") from None
