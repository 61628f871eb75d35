"""Loading plugins one by one, so that a broken one never stops the others. No torch."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from typing import Any, get_args

import pluggy

from polyattn import hookspecs
from polyattn.errors import suggestion
from polyattn.spec import API, OLDEST_API, Spec, VariantSpec

GROUP = "polyattn"
OWN = "polyattn"
_LONGEST_REASON = 400


@dataclass(frozen=True)
class BrokenPlugin:
    """A plugin, or a part of one, that could not be loaded. ``label``: ``distribution:entry``."""

    label: str
    reason: str


@dataclass(frozen=True)
class Plugin:
    """What one entry point brought: each descriptor, and why it cannot be used or ''."""

    distribution: str
    label: str
    specs: tuple[tuple[Spec, str], ...]
    failures: tuple[BrokenPlugin, ...]


def load_plugins(*, strangers: bool = True) -> tuple[Plugin, ...]:
    """Load every entry point of the group, polyattn's own first, the others by their label."""
    found = [(_distribution(point), point) for point in _entry_points()]
    found.sort(key=lambda pair: (pair[0] != OWN, pair[0], pair[1].name))
    return tuple(_load(owner, point) for owner, point in found if strangers or owner == OWN)


def _entry_points() -> Iterable[importlib.metadata.EntryPoint]:
    return importlib.metadata.entry_points(group=GROUP)


def _distribution(point: importlib.metadata.EntryPoint) -> str:
    # Damaged metadata have no name.
    name = (point.dist.name if point.dist is not None else None) or "unknown"
    return re.sub(r"[-_.]+", "-", name).lower()


def _load(distribution: str, point: importlib.metadata.EntryPoint) -> Plugin:
    label = f"{distribution}:{point.name}"
    specs: list[Spec] = []
    problems: list[str] = []
    broken = ""
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    try:
        module = point.load()
        manager.register(module, name=label)
        problems.extend(_not_hooks(manager, module))
        for spec in _called(manager):  # one by one: what came before an error is kept
            specs.append(spec)
    except (Exception, SystemExit) as error:
        broken = _describe(error)
        problems.insert(0, broken)
    reasons = [_reason(spec, distribution, label, broken) for spec in specs]
    return Plugin(
        distribution,
        label,
        tuple(zip(specs, reasons, strict=True)),
        tuple(BrokenPlugin(label, problem) for problem in problems),
    )


def _called(manager: pluggy.PluginManager) -> Iterator[Spec]:
    """Yield what the hook brings; its own errors, and what is no descriptor, are raised."""
    hook = manager.hook.polyattn_variants
    results = hook()
    # pluggy drops a hook's None, which is what a function without a yield returns.
    if hook.get_hookimpls() and not results:
        raise TypeError("its hook returned None; yield the descriptors, or return a list of them")
    for brought in results:
        for spec in brought:
            if not isinstance(spec, get_args(Spec)):
                kinds = ", ".join(kind.__name__ for kind in get_args(Spec))
                raise TypeError(f"expected descriptors ({kinds}), got {spec!r:.80}")
            yield spec


def _not_hooks(manager: pluggy.PluginManager, module: Any) -> Iterator[str]:
    """Every function that was meant as a hook and is none; pluggy stops at the first one."""
    known = [name for name in vars(hookspecs) if name.startswith(f"{GROUP}_")]
    marked = [caller.name for caller in manager.get_hookcallers(module) or []]
    for name in marked:
        if name not in known:
            hint = suggestion(name, known) or f"; known: {', '.join(known)}"
            yield f"unknown hook {name!r}{hint}"
    unmarked = [
        name
        for name, value in inspect.getmembers(module, inspect.isfunction)
        if name.startswith(f"{GROUP}_")
        and name not in marked
        and value.__module__ == module.__name__
    ]
    for name in unmarked:
        yield f"{name!r} is not marked as a hook; write @polyattn.hookimpl above it"
    if not marked and not unmarked:
        yield f"it has no hook; define {' or '.join(known)} and mark it with @polyattn.hookimpl"


def _reason(spec: Spec, distribution: str, label: str, broken: str) -> str:
    if broken:
        return f"its plugin {label} failed: {broken}"
    if not isinstance(spec, VariantSpec):
        return ""
    if not OLDEST_API <= spec.api <= API:
        return _other_contract(spec.api, distribution)
    for package in spec.requires:
        if not _installed(package):
            return f"it needs the package {package!r}, which is not installed; install it first"
    return ""


def _other_contract(asked: int, distribution: str) -> str:
    spoken = str(API) if API == OLDEST_API else f"{OLDEST_API} to {API}"
    fits = (
        f"upgrade polyattn, or install an older version of {distribution}"
        if asked > API
        else f"upgrade {distribution}"
    )
    return f"it was written for contract {asked} and this polyattn speaks {spoken}; {fits}"


def _installed(package: str) -> bool:
    """Whether a package can be found. Nothing is imported: `importlib.util.find_spec("a.b")`
    would run a, which may do anything."""
    first, *others = package.split(".")
    try:
        spec = importlib.util.find_spec(first)
        name = first
        for part in others:
            if spec is None or spec.submodule_search_locations is None:
                return False
            name = f"{name}.{part}"
            spec = _found(name, spec.submodule_search_locations)
    except Exception:  # a finder is a stranger's too
        return False
    return spec is not None


def _found(name: str, places: Sequence[str]) -> ModuleSpec | None:
    specs = (finder.find_spec(name, places) for finder in sys.meta_path)
    return next((spec for spec in specs if spec is not None), None)


def _describe(error: BaseException) -> str:
    try:
        said = str(error)
    except Exception:
        said = "it cannot say what is wrong"
    text = " ".join(f"{type(error).__name__}: {said}".split())
    return text if len(text) <= _LONGEST_REASON else text[: _LONGEST_REASON - 3] + "..."
