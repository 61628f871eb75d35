"""Blind mutants: what a typing error or a slip of the mind would make of a variant's source.

``mutants(path)`` lists them, each one node of the syntax tree replaced by another. Left as they
are: docstrings, annotations, decorators, imports, assertions, texts of errors, the ranges of
options, ``examples()``, and what runs on CUDA alone. Claims are only changed into larger ones: a
variant that claims less than it can do is honest.
"""

from __future__ import annotations

import ast
import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType

from tests.mutants.operators import OPERATORS, claims, detached, is_claim, reassigned

SOURCES = Path(__file__).parents[2] / "plugins" / "polyattn_plugins"

LEFT_ALONE = frozenset({"examples", "_flash_on_cuda", "_refused_on_cuda"})
"""Functions that are no part of what is checked here."""
ELSEWHERE = frozenset({"__init__.py", "fused.py"})
"""Files of which nothing runs in the suite on a CPU."""
TEXTS = frozenset({"Refusal", "Field"})
"""Calls whose arguments speak to people, or are a choice that no check can know."""
KERNELS = ("_kernel", "_backward", "_chunks")
"""Ends of the names of files that are run inside operators of torch, where no gradient is."""


@dataclass(frozen=True, eq=False)
class Place:
    """Where a node hangs: ``parent.field``, or ``parent.field[index]``."""

    parent: ast.AST
    field: str
    index: int | None

    def put(self, node: ast.AST) -> None:
        if self.index is None:
            setattr(self.parent, self.field, node)
        else:
            getattr(self.parent, self.field)[self.index] = node


@dataclass(frozen=True, eq=False)
class Mutant:
    """One change of one file. ``id``: file, function, operator, and which of those it is."""

    id: str
    path: Path
    line: int
    tree: ast.Module
    place: Place
    before: ast.AST
    after: ast.AST

    @property
    def file(self) -> str:
        return self.path.name

    @property
    def change(self) -> str:
        """What tells this change from others, whatever the ways to change it are called."""
        return _short_hash(f"{ast.dump(self.before)} -> {ast.dump(self.after)}")

    def code(self) -> CodeType:
        """The file's code with the change in it; the tree is left as it was."""
        self.place.put(ast.fix_missing_locations(ast.copy_location(self.after, self.before)))
        try:
            return compile(self.tree, str(self.path), "exec", dont_inherit=True)
        finally:
            self.place.put(self.before)

    def __str__(self) -> str:
        return f"{_short(self.before)} -> {_short(self.after)}"


def files() -> list[Path]:
    """The files that mutants are made of."""
    return [path for path in sorted(SOURCES.glob("*.py")) if path.name not in ELSEWHERE]


@cache
def digest(path: Path) -> str:
    """What changes with the code of a file, not with its texts or lines."""
    return _short_hash(_code(path))


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _code(path: Path) -> str:
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            body[:] = [part for part in body if not _is_text(part)]
    return ast.dump(tree)


def mutants(path: Path) -> list[Mutant]:
    """Every mutant of one file, in the order of the source; the same for the same code."""
    tree = ast.parse(path.read_text(), str(path))
    found: list[Mutant] = []
    numbers: Counter[str] = Counter()
    recorded = not path.stem.endswith(KERNELS)
    for place, node, function in _places(tree, ""):
        seen = {ast.dump(node)}
        for name, after in _changes(node, recorded):
            if ast.dump(after) in seen:
                continue
            seen.add(ast.dump(after))
            key = f"{path.name}:{function or 'module'}:{name}"
            numbers[key] += 1
            line = getattr(node, "lineno", 0)
            found.append(Mutant(f"{key}:{numbers[key]}", path, line, tree, place, node, after))
    return found


def _changes(node: ast.AST, recorded: bool) -> Iterator[tuple[str, ast.AST]]:
    """What could stand for a node. recorded: autograd follows what is computed here."""
    if is_claim(node):
        yield from claims(node)
        return
    for operator in OPERATORS:
        if recorded or operator is not detached:
            for after in operator(node):
                yield operator.__name__, after


def _places(node: ast.AST, function: str) -> Iterator[tuple[Place, ast.AST, str]]:
    """Every node that may be changed, with the function that it is in, source order."""
    bound = reassigned(node) if isinstance(node, ast.FunctionDef) else frozenset[int]()
    for field, value in ast.iter_fields(node):
        if field in {"annotation", "returns", "decorator_list", "bases", "ctx", "op", "ops"}:
            continue
        several = value if isinstance(value, list) else [value]
        for index, child in enumerate(several):
            if not isinstance(child, ast.AST) or _untouched(child, function):
                continue
            inner = function
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                inner = f"{function}.{child.name}".lstrip(".")
            place = Place(node, field, index if isinstance(value, list) else None)
            removable = not isinstance(child, ast.Assign) or id(child) in bound
            if removable:
                yield place, child, inner
            if not is_claim(child):
                yield from _places(child, inner)


def _untouched(node: ast.AST, function: str) -> bool:
    if isinstance(node, ast.FunctionDef) and node.name in LEFT_ALONE:
        return True
    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
        return True
    kinds = ast.Import | ast.ImportFrom | ast.Raise | ast.Assert | ast.JoinedStr
    return isinstance(node, kinds) or _is_text(node) or _called(node, TEXTS)


def _is_text(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _called(node: ast.AST, names: frozenset[str]) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in names


def _short(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 60 else f"{text[:57]}..."
