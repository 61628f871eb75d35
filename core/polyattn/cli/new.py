"""``polyattn new``: a package with a variant that works, to be changed into one's own. No torch."""

from __future__ import annotations

import importlib.metadata
import importlib.resources
import importlib.util
import keyword
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from pathlib import Path, PurePosixPath
from string import Template
from types import MappingProxyType
from typing import Annotated

import typer

from polyattn.errors import ConfigError, suggestion
from polyattn.registry import USER, Registry, discover
from polyattn.spec import API

__all__ = ["new"]

_NAME = re.compile(r"[a-z](?:[a-z0-9_]{0,30}[a-z0-9])?")
_OWN_FOLDERS = ("src", "tests")
"""Folders of the written package: a module of such a name would be another one's."""


@dataclass(frozen=True)
class _Kind:
    """What the templates of one kind say in places that they share with the other."""

    summary: str
    paper: str


_KINDS: Mapping[str, _Kind] = MappingProxyType(
    {
        "sequence": _Kind(
            "softmax attention in which a query may attend to nothing",
            "https://arxiv.org/abs/2309.17453",
        ),
        "feature_map": _Kind(
            "each channel scaled by a gate, from the means of the channels beside it",
            "https://arxiv.org/abs/1910.03151",
        ),
    }
)


def new(
    name: Annotated[str, typer.Argument(help="What to call it, such as quiet or quiet-attention.")],
    kind: Annotated[
        str, typer.Option(metavar="sequence|feature_map", help="What the variant is over.")
    ] = "sequence",
    folder: Annotated[Path, typer.Option(help="Where the folder of the package is made.")] = Path(),
) -> None:
    """Write a package with one variant of your own, its test and its settings.

    It is installable and passes every check as it stands. Nothing is overwritten.
    """
    if kind not in _KINDS:
        hint = suggestion(kind, _KINDS) or f"; kinds are {' and '.join(_KINDS)}"
        raise ConfigError(f"--kind {kind}: unknown kind{hint}")
    module = module_name(name, discover())
    # The name of a distribution has dashes, by custom; a folder keeps the name that was typed.
    target = folder / name
    _write(_files(module, kind), _free(target))
    typer.echo(f"wrote {target}: {module}, a variant of kind {kind}\n\nnext:")
    for command in _next_commands(target, module):
        typer.echo(f"  {command}")


def module_name(name: str, registry: Registry) -> str:
    """The name of module and variant: dashes become underscores.

    Raises: ConfigError for a name that cannot be one, or that something else has.
    """
    module = name.replace("-", "_")
    if not _NAME.fullmatch(module):
        said = "up to 32 small letters, digits, '-' and '_', from a letter to a letter or digit"
        raise ConfigError(f"new {name!r}: expected a name of {said}{_cleaned(name)}")
    owner = next(iter(_owners(module, registry)), None)
    if owner is not None:
        raise ConfigError(f"new {name}: {owner}; take another name, such as my_{module}")
    return module


def _cleaned(name: str) -> str:
    """The nearest name that would do."""
    words = re.sub(r"[^a-z0-9]+", "_", name.lower()).lstrip("_0123456789")[:32].rstrip("_")
    return f", such as {words}" if _NAME.fullmatch(words) else ""


def _owners(module: str, registry: Registry) -> Iterator[str]:
    """Who has this name already, each in one sentence."""
    distribution = _distribution(module)
    if keyword.iskeyword(module) or keyword.iskeyword(_class_name(module)):
        yield f"{module!r} is a word of Python itself"
    if module in sys.stdlib_module_names:
        yield f"Python has a module {module!r} of its own"
    if module in _OWN_FOLDERS:
        yield f"{module!r} is a folder inside the package"
    if module == USER:
        yield f"{module!r} is what polyattn calls your own registry.yaml"
    labels = {plugin.label for plugin in registry.unavailable}
    for entry in registry.entries:
        labels.add(entry.label)
        if entry.name == module:
            yield f"{module!r} is registered already, by {entry.distribution}"
    if any(_distribution(label.split(":")[0]) == distribution for label in labels):
        yield f"a plugin called {distribution!r} is installed already"
    if _installed(module, distribution):
        yield f"a package called {module!r} is installed already"


def _installed(module: str, distribution: str) -> bool:
    try:
        importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError:
        # Of a module without a dot nothing is imported.
        return importlib.util.find_spec(module) is not None
    return True


def _class_name(module: str) -> str:
    return "".join(word.capitalize() for word in module.split("_"))


def _distribution(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name)


def _free(target: Path) -> Path:
    """The folder, if nothing is in it. Raises: ConfigError."""
    way_out = "choose another name or --folder, or remove it first"
    try:
        if target.is_symlink() or (target.exists() and not target.is_dir()):
            raise ConfigError(f"new: {target} is there and no folder; {way_out}")
        if target.exists() and any(target.iterdir()):
            raise ConfigError(f"new: {target} is there and not empty; {way_out}")
    except OSError as error:
        raise ConfigError(f"new: {target} cannot be read: {error.strerror}; {way_out}") from error
    return target


def _files(module: str, kind: str) -> dict[PurePosixPath, str]:
    """What is written, by path."""
    words = {
        "module": module,
        "distribution": _distribution(module),
        "Class": _class_name(module),
        "kind": kind,
        "version": ".".join(importlib.metadata.version("polyattn").split(".")[:2]),
        "summary": _KINDS[kind].summary,
        "paper": _KINDS[kind].paper,
        "api": str(API),
    }
    root = importlib.resources.files("polyattn.cli") / "templates"
    files = {}
    for part in ("common", kind):
        for place, text in _templates(root / part):
            named = place.removesuffix(".template").replace("MODULE", module)
            files[PurePosixPath(named.replace("dot_", "."))] = Template(text).substitute(words)
    return files


def _templates(folder: Traversable, place: str = "") -> Iterator[tuple[str, str]]:
    for item in folder.iterdir():
        if item.is_dir():
            yield from _templates(item, f"{place}{item.name}/")
        elif item.name.endswith(".template"):
            yield place + item.name, item.read_text(encoding="utf-8")


def _write(files: Mapping[PurePosixPath, str], target: Path) -> None:
    try:
        for place, text in files.items():
            path = target / place
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8", newline="\n") as file:
                file.write(text)
    except OSError as error:
        raise ConfigError(
            f"new: {error.filename or target} cannot be written: {error.strerror}; choose another "
            "--folder"
        ) from error


def _next_commands(target: Path, module: str) -> tuple[str, ...]:
    # Without the dot, pip would look for a package of this name in its index.
    typed = target.as_posix()
    place = typed if target.is_absolute() or typed.startswith(".") else f"./{typed}"
    return (
        f"pip install -e {shlex.quote(f'{place}[dev]')}",
        f"polyattn check {module}",
        f"pytest {shlex.quote(place)}",
    )
