"""Variants never import each other's files: only files of one family may, by their first word.

A kernel whose first word is no variant's belongs to all of them.
"""

import ast
from pathlib import Path

import pytest
import yaml

PLUGINS = Path(__file__).parents[2] / "plugins" / "polyattn_plugins"
MANIFEST = yaml.safe_load((PLUGINS / "registry.yaml").read_text(encoding="utf-8"))
FAMILIES = {
    variant["target"].split(":")[0].split(".")[-1] for variant in MANIFEST["variants"].values()
}


def strangers(module: str, source: str) -> list[str]:
    """The modules of other families that a module imports."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module:
            relative = "polyattn_plugins." if node.level else ""
            targets = [f"{relative}{node.module}"]
            if node.module == "polyattn_plugins":
                targets = [f"polyattn_plugins.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        else:
            continue
        inside = [name.split(".")[1] for name in targets if name.startswith("polyattn_plugins.")]
        found += [name for name in inside if family(name) != family(module) and not shared(name)]
    return found


def shared(module: str) -> bool:
    """Whether a module is a kernel that no family owns."""
    return module.endswith("_kernel") and family(module) == module


def family(module: str) -> str:
    whole = [name for name in FAMILIES if module == name or module.startswith(f"{name}_")]
    return whole[0] if whole else module


@pytest.mark.parametrize("path", sorted(PLUGINS.glob("*.py")), ids=lambda path: path.stem)
def test_a_variant_imports_only_its_own_family(path: Path) -> None:
    assert strangers(path.stem, path.read_text()) == []


def test_an_import_across_families_would_be_seen() -> None:
    across = "from polyattn_plugins.linear_kernel import scan\nimport polyattn_plugins.gates"
    assert strangers("window", across) == ["linear_kernel", "gates"]
    assert strangers("window", "from polyattn_plugins import window_kernel, softmax") == ["softmax"]
    assert strangers("window", "from polyattn_plugins.window_kernel import x") == []
    common = "from polyattn_plugins import sdpa_kernel, sdpa, packed_kernel"
    assert strangers("window", common) == ["sdpa", "packed_kernel"]
