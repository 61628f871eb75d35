"""The docs say what is true: each command runs, each snippet works, each variant has its page."""

from __future__ import annotations

import importlib
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import polyattn
from polyattn.registry import discover
from polyattn.spec import OperationSpec, PresetSpec, VariantSpec

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
ACME = ROOT / "tests/strangers/acme/acme_attention"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)


COMMANDS = [
    line.removeprefix("$ ").split("  #")[0].strip()
    for block in blocks("console")
    for line in block.splitlines()
    if line.startswith("$ ")
]
FAULTY = "examples/my_attention.py"


def names(kind: type) -> list[str]:
    return [
        name
        for name, entry in {**discover().variants, **discover().operations}.items()
        if isinstance(entry.spec, kind) and entry.distribution == "polyattn"
    ]


def test_the_readme_has_commands() -> None:
    assert {shlex.split(command)[1] for command in COMMANDS} >= {
        "list",
        "show",
        "explain",
        "check",
        "compare",
    }


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_of_the_readme_runs(command: str, tmp_path: Path) -> None:
    program, *arguments = shlex.split(command)
    for name in ("README.md", "examples"):
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, tmp_path / name)
    done = subprocess.run(
        [Path(sys.executable).with_name(program), *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    faulty = any(argument.startswith(FAULTY) for argument in arguments)
    assert done.returncode == (1 if faulty else 0), done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_the_snippet_of_the_readme_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    (snippet,) = (block for block in blocks("python") if "polyattn.build" in block)
    scope: dict[str, object] = {}
    exec(compile(snippet, "README.md", "exec"), scope)
    assert tuple(scope["logits"].shape) == (2, 7, 256)  # type: ignore[attr-defined]
    assert tuple(scope["out"].shape) == (2, 8, 1000, 64)  # type: ignore[attr-defined]


def test_the_config_of_the_readme_is_the_example() -> None:
    (config,) = (yaml.safe_load(block) for block in blocks("yaml") if "causal_lm" in block)
    assert config == yaml.safe_load((ROOT / "examples/window_lm.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("file", ["__init__.py", "cosine.py"])
def test_the_plugin_of_the_readme_is_the_one_that_is_tested(file: str) -> None:
    assert (ACME / file).read_text(encoding="utf-8") in blocks("python")
    assert (ACME.parent / "pyproject.toml").read_text(encoding="utf-8") in blocks("toml")


@pytest.mark.parametrize("name", names(VariantSpec))
def test_each_variant_opens_with_what_a_reader_needs(name: str) -> None:
    spec = discover().find(name).spec
    assert isinstance(spec, VariantSpec)
    header = importlib.import_module(spec.target.split(":")[0]).__doc__ or ""
    for part in ("Paper", "Deviations", "Cost", "Memory", "When not to use it"):
        assert part in header, f"{spec.target}: its header lacks {part!r}"
    assert re.search(r"^    \S.* = ", header, flags=re.MULTILINE), "no equation"
    assert spec.paper in header
    assert spec.summary


@pytest.mark.parametrize("name", names((VariantSpec, OperationSpec)))  # type: ignore[arg-type]
def test_each_name_has_a_page_and_a_row(name: str) -> None:
    page = ROOT / "docs/variants" / f"{name}.md"
    assert page.exists()
    text = page.read_text(encoding="utf-8")
    assert text.startswith(f"# {name}\n")
    assert "When not to use it" in text
    assert f"[`{name}`](docs/variants/{name}.md)" in README


def test_the_readme_shows_a_real_comparison() -> None:
    (table,) = (block for block in blocks("") if block.startswith("causal attention"))
    for name in ("softmax", "local_window", "linear", "n-gram, order 4"):
        assert f"\n{name} " in table


def test_links_lead_somewhere() -> None:
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}"


def test_every_public_name_has_a_docstring() -> None:
    for name in polyattn.__all__:
        value = getattr(polyattn, name)
        if callable(value):
            assert (value.__doc__ or "").strip(), name


def test_presets_can_be_built() -> None:
    for name, entry in discover().presets.items():
        if isinstance(entry.spec, PresetSpec) and entry.distribution == "polyattn":
            assert polyattn.create(name) is not None
