"""Loading a thing from a file or a module, whatever happens when it is imported."""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import inspect
import io
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import torch

from polyattn.errors import ConfigError, suggestion
from polyattn.testing.process.contained import TimeUp, contained, first_line, limited
from polyattn.testing.process.settings import settings, settings_restored

Function = Callable[..., Any]


@dataclass(frozen=True)
class Loaded:
    """``make`` gives the function; None where nothing could be loaded. ``problem``: what was
    wrong on the way, empty where nothing was."""

    name: str
    make: Callable[[], Function] | None
    problem: str = ""
    stage: Literal["loading", "making"] = "loading"


def load_thing(target: str, patience: float | None = None) -> Loaded:
    """Load ``path/to/file.py:thing`` or ``package.module:thing``.

    patience: seconds that importing it is given, and making it where it is a class.

    Raises: ConfigError where there is no such file, module or name, or the file is no Python.
    """
    place, name = _split(target)
    path = Path(place)
    if place.endswith(".py"):
        _need_file(path, name)
    spoken = io.StringIO()
    before = settings()
    with settings_restored(), contextlib.redirect_stdout(spoken):
        try:
            with _search_path_kept() as lost, limited(patience), contained():
                module = _module(place, path)
        except ConfigError:
            raise
        except TimeUp as error:
            return Loaded(target, None, f"importing {place}: {error}")
        except Exception as error:
            return Loaded(target, None, f"importing {place} raised {first_line(error)}")
        after = settings()
    thing = _thing(module, place, name)
    changed = [what for what, value in before.items() if after[what] != value] + lost
    problem = f"importing {place} changed {', '.join(changed)}" if changed else ""
    if spoken.getvalue().strip() and not problem:
        problem = f"importing {place} printed {spoken.getvalue().strip().splitlines()[0][:80]!r}"
    return _made(target, thing, problem, patience)


def look_for(target: str) -> None:
    """See that the file or module of ``file.py:thing`` is there, and the name in it; run nothing.

    A name that only running the file would make is given the benefit of the doubt.

    Raises: ConfigError as ``load_thing``.
    """
    place, name = _split(target)
    path = Path(place)
    if not place.endswith(".py"):
        return
    _need_file(path, name)
    _compiled(path)
    tree = ast.parse(path.read_bytes())
    known = [name for statement in tree.body for name in _bound(statement)]
    first = name.partition(".")[0]
    if known and first not in known and "*" not in known:
        hint = suggestion(first, known) or f"; it has {', '.join(known[:8])}"
        raise ConfigError(f"{place}: no {first!r} in it{hint}")


def _bound(statement: ast.stmt) -> list[str]:
    """The names that one statement at the top of a file gives a meaning; * for any."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return [statement.name]
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return [(x.asname or x.name).partition(".")[0] for x in statement.names]
    if isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
        return [x.id for x in ast.walk(statement) if isinstance(x, ast.Name)]
    # Inside if, for, try and with, names may come from anywhere.
    return [] if isinstance(statement, ast.Expr) else ["*"]


def _split(target: str) -> tuple[str, str]:
    place, _, name = target.rpartition(":")
    if not place or not name:
        raise ConfigError(f"{target!r}: expected file.py:thing or package.module:thing")
    return place, name


def _module(place: str, path: Path) -> ModuleType:
    if not place.endswith(".py"):
        try:
            found = importlib.util.find_spec(place)
        except (ImportError, ValueError):
            found = None
        if found is None:
            raise ConfigError(f"{place}: no such module or file")
        return importlib.import_module(place)
    _compiled(path)
    name = f"polyattn_door_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and pickles look their module up; the file's neighbours are imported from it.
    sys.modules[name] = module
    _find_neighbours_of(path)
    spec.loader.exec_module(module)
    return module


def _find_neighbours_of(path: Path) -> None:
    """Look into the file's folder first, as Python does for a program.

    For as long as the process lives: some import in __init__, and others in forward.
    """
    folder = str(path.resolve().parent)
    sys.path[:] = [folder, *(entry for entry in sys.path if entry != folder)]


@contextlib.contextmanager
def _search_path_kept() -> Iterator[list[str]]:
    """Keep where modules are searched, the list itself too; what a file adds there is kept as well.

    Afterwards: ``sys.path`` among what was changed, if nothing of it was left.
    """
    path, entries = sys.path, list(sys.path)
    lost: list[str] = []
    try:
        yield lost
    finally:
        now: object = sys.path
        found = [x for x in now if isinstance(x, str)] if isinstance(now, list | tuple) else []
        if not set(found) & set(entries):
            lost.append("sys.path")
        sys.path = path
        path[:] = dict.fromkeys([*found, *entries])


def _need_file(path: Path, name: str) -> None:
    """Raises: ConfigError where there is none, or none can be of that name."""
    try:
        there = path.is_file()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    if not there:
        raise ConfigError(f"{path}: no such file; expected file.py:{name}")


def _compiled(path: Path) -> None:
    """Say which it is where a file is no Python at all: that is no finding about an attention."""
    try:
        compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except (MemoryError, RecursionError):
        raise ConfigError(f"{path}: an expression is nested too deeply for Python") from None
    except (SyntaxError, ValueError) as error:
        raise ConfigError(f"{path}: {_no_python(path.read_bytes(), error)}") from None


def _no_python(source: bytes, error: Exception) -> str:
    if b"\0" in source:
        return "expected Python source, got a file with NUL bytes"
    if "codec can't decode" in str(error) or "(unicode error)" in str(error):
        return f"expected UTF-8 text, or a declared encoding, got other bytes ({error})"
    line = error.lineno if isinstance(error, SyntaxError) else None
    told = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"syntax error{f' in line {line}' if line else ''}: {told}"


def _thing(module: ModuleType, place: str, name: str) -> Any:
    thing: Any = module
    for part in name.split("."):
        if not hasattr(thing, part):
            known = [n for n, x in vars(module).items() if callable(x) and not n.startswith("_")]
            hint = suggestion(part, known) or f"; it has {', '.join(known[:8]) or 'no functions'}"
            raise ConfigError(f"{place}: no {name!r} in it{hint}")
        thing = getattr(thing, part)
    return thing


def _made(target: str, thing: Any, problem: str, patience: float | None) -> Loaded:
    """A class, and a function without arguments that gives something callable, are factories."""
    if not callable(thing):
        raise ConfigError(f"{target}: expected a function, a class or a module, got {thing!r:.60}")
    if not (inspect.isclass(thing) or _takes_nothing(thing)):
        return Loaded(target, lambda: thing, problem)
    try:
        quiet = contextlib.redirect_stdout(io.StringIO())
        with settings_restored(), quiet, limited(patience), contained():
            made = thing()
    except TimeUp as error:
        told = f"{target}() without arguments: {error}"
        return _not_made(target, problem, told)
    except Exception as error:
        told = f"{target}() without arguments raised {first_line(error)}"
        if inspect.isclass(thing) and isinstance(error, TypeError):
            told += f"; {_way_in(target)}"
        return _not_made(target, problem, told)
    if not callable(made):
        told = f"{target}() gave a {type(made).__name__}, expected a function of (q, k, v)"
        return _not_made(target, problem, told)
    return Loaded(target, thing, problem)


def _not_made(target: str, problem: str, told: str) -> Loaded:
    return Loaded(target, None, "; ".join(filter(None, (problem, told))), "making")


def _way_in(target: str) -> str:
    """How to hand over an instance of a class that needs arguments."""
    place, name = _split(target)
    return (
        f"hand over an instance: write `attend = {name}(...)` at the top of {place}, and check "
        f"{place}:attend"
    )


def _takes_nothing(thing: Any) -> bool:
    if isinstance(thing, torch.nn.Module):
        return False
    try:
        return not inspect.signature(thing).parameters
    except (TypeError, ValueError):
        return False
