"""The core knows no variant: what it says about one is in a plugin or in the manifest."""

import ast
import re
from pathlib import Path

from polyattn.registry import discover

CORE = Path(__file__).parents[2] / "core" / "polyattn"


def strings(tree: ast.AST) -> list[tuple[int, str]]:
    """Every text in the code that is not a docstring, with its line."""
    docs = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    return [
        (node.lineno, node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs
    ]


def named_in(source: str, names: set[str]) -> list[tuple[int, str]]:
    return [(line, text) for line, text in strings(ast.parse(source)) if text in names]


def allowed(path: str) -> set[str]:
    """Words that mean something else here: see each comment."""
    words = {"dense"}  # a part of a mask
    if path.startswith("testing/"):
        words |= {"sdpa"}  # a door: the way in which a stranger's function is called
        words |= {"softmax"}  # the definition with which such a function is compared
    return words


def test_core_names_no_variant() -> None:
    names = set(discover(plugins=False).names())
    found = {}
    for path in sorted(CORE.rglob("*.py")):
        place = path.relative_to(CORE).as_posix()
        hits = named_in(path.read_text(), names - allowed(place))
        if hits:
            found[place] = hits
    assert not found, "the core must not name a variant; put it into registry.yaml"


def test_core_names_no_plugin_package() -> None:
    pattern = re.compile(r"\bpolyattn_plugins\b")
    found = [path.name for path in CORE.rglob("*.py") if pattern.search(path.read_text())]
    assert not found


def test_a_named_variant_would_be_seen() -> None:
    source = 'def f(name):\n    "linear"\n    return name == "local_window"\n'
    assert named_in(source, {"local_window", "linear"}) == [(3, "local_window")]
