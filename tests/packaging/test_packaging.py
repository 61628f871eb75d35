"""Each way to install polyattn finds its plugin and the manifest beside it."""

import tarfile
import zipfile
from pathlib import Path

import pytest
from tests.environments import ROOT, Environment, borrowing_environment, build

WHERE = """
import json, polyattn, polyattn_plugins, sys
from polyattn.registry import discover
found = discover()
print(json.dumps({
    "core": polyattn.__file__,
    "plugins": polyattn_plugins.__file__,
    "names": found.names(),
    "failed": [plugin.reason for plugin in found.unavailable],
    "preferred": [entry.name for entry in found.members("softmax")],
}))
"""


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, "sdist", tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def unpacked(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        # Python 3.11 knows filters from 3.11.4 on.
        archive.extractall(
            folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {})
        )
    (root,) = folder.iterdir()
    return root


def assert_works(environment: Environment, home: Path) -> None:
    """The packages lie under ``home``, and both Python and the program find the manifest."""
    seen = environment.script(WHERE)
    assert Path(seen["core"]).resolve().is_relative_to(home.resolve())
    assert Path(seen["plugins"]).resolve().is_relative_to(home.resolve())
    assert seen["failed"] == []
    assert {"softmax", "local_window", "se", "mistral_window"} <= set(seen["names"])
    assert seen["preferred"] == ["windowed", "packed", "flash", "sdpa", "dense"]
    listing = environment.run("polyattn", "list")
    assert listing.returncode == 0, listing.stderr
    assert "local_window" in listing.stdout


def test_wheel(wheel: Path, tmp_path: Path) -> None:
    environment = borrowing_environment(tmp_path / "env")
    environment.pip_install(wheel)
    assert_works(environment, environment.folder)


def test_wheel_from_sdist(unpacked: Path, tmp_path: Path) -> None:
    target = tmp_path / "built"
    target.mkdir()
    environment = borrowing_environment(tmp_path / "env")
    environment.pip_install(build(unpacked, "wheel", target))
    assert_works(environment, environment.folder)


def test_sdist(sdist: Path, tmp_path: Path) -> None:
    environment = borrowing_environment(tmp_path / "env")
    environment.pip_install(sdist)
    assert_works(environment, environment.folder)


def test_editable(tmp_path: Path) -> None:
    environment = borrowing_environment(tmp_path / "env")
    environment.pip_install("-e", ROOT)
    assert_works(environment, ROOT)


def test_editable_from_a_copy_without_links(unpacked: Path, tmp_path: Path) -> None:
    link = unpacked / "plugins" / "polyattn_plugins" / "registry.yaml"
    link.unlink()
    link.write_text("../../registry.yaml")
    environment = borrowing_environment(tmp_path / "env")
    environment.pip_install("-e", unpacked)
    outcome = environment.run("polyattn", "list")
    assert "without links; run `git config core.symlinks true" in outcome.stdout


def test_a_wheel_holds_the_two_packages_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"polyattn", "polyattn_plugins"}
    assert {"polyattn/py.typed", "polyattn_plugins/py.typed"} <= set(names)
    manifest = zipfile.ZipFile(wheel).read("polyattn_plugins/registry.yaml")
    assert manifest == (ROOT / "registry.yaml").read_bytes()
    assert not [name for name in names if "__pycache__" in name]
    (metadata,) = [name for name in names if name.endswith("METADATA")]
    requirements = zipfile.ZipFile(wheel).read(metadata).decode()
    direct = [
        line.split()[1].split(">")[0]
        for line in requirements.splitlines()
        if line.startswith("Requires-Dist") and "extra" not in line
    ]
    assert direct == ["pluggy", "pydantic", "pyyaml", "rich", "safetensors", "torch", "typer"]


def test_the_pins_hold_what_is_required_and_no_local_version(wheel: Path) -> None:
    pins = (ROOT / "constraints.txt").read_text()
    pinned = {line.split("==")[0].lower() for line in pins.splitlines() if "==" in line}
    names = zipfile.ZipFile(wheel).namelist()
    (metadata,) = [name for name in names if name.endswith("METADATA")]
    wanted = {
        line.split()[1].split(">")[0].split("[")[0].rstrip(";").lower()
        for line in zipfile.ZipFile(wheel).read(metadata).decode().splitlines()
        if line.startswith("Requires-Dist")
    } - {"polyattn"}
    assert wanted <= pinned
    assert "+cpu" not in pins
