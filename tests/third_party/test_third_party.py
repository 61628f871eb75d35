"""A package of somebody else, from its installation to its removal, in one environment."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.environments import ROOT, Environment, borrowing_environment

PACKAGE = Path(__file__).parent / "additive"

MODEL = """
import json, sys, torch, polyattn
torch.manual_seed(0)
config = {"model": "causal_lm", "vocab_size": 11, "d_model": 16, "layers": 2, "heads": 2}
plain = polyattn.build({**config, "attention": "softmax"})
model = polyattn.build({**config, "attention": "bahdanau"}).eval()
narrow = polyattn.build({**config, "attention": "narrow_bahdanau"})
ids = torch.randint(11, (2, 7))
logits = model(ids)
logits.square().mean().backward()
state = model.new_state(2)
steps = []
for i in range(7):
    step, state = model.extend(ids[:, i : i + 1], state)
    steps.append(step)
polyattn.save(model, sys.argv[1])
again = polyattn.load(sys.argv[1]).eval()
own = {n for n, _ in model.named_parameters()} - {n for n, _ in plain.named_parameters()}
print(json.dumps({
    "own": sorted({name.rpartition(".")[2] for name in own}),
    "learns": all(float(dict(model.named_parameters())[name].grad.abs().sum()) > 0 for name in own),
    "width": narrow.config["attention"],
    "same": bool(torch.equal(again(ids), logits)),
    "steps": bool(torch.allclose(torch.cat(steps, 1), logits, atol=1e-5)),
}))
"""

GONE = """
import json, sys, polyattn
said = []
config = {"model": "causal_lm", "vocab_size": 11, "d_model": 16, "layers": 2, "heads": 2}
for call in (
    lambda: polyattn.build({**config, "attention": "bahdanau"}),
    lambda: polyattn.load(sys.argv[1]),
):
    try:
        call()
    except polyattn.PolyattnError as error:
        said.append(f"{type(error).__name__}: {error}")
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    made = borrowing_environment(tmp_path_factory.mktemp("third") / "env")
    made.pip_install(wheel, PACKAGE)
    return made


def listed(environment: Environment) -> dict[str, dict[str, str]]:
    done = environment.run("polyattn", "list", "--json")
    assert done.returncode == 0, done.stderr
    return {row["name"]: row for row in json.loads(done.stdout)["names"]}


def test_its_whole_life(environment: Environment, tmp_path: Path) -> None:
    names = listed(environment)
    assert names["bahdanau"]["distribution"] == "additive-bahdanau"
    assert names["bahdanau"]["plugin"] == "additive-bahdanau:additive"
    assert names["narrow_bahdanau"]["kind"] == "preset"
    shown = environment.run("polyattn", "show", "narrow_bahdanau")
    for words in ("Bahdanau et al.", "width", "https://arxiv.org/abs/1409.0473"):
        assert words in shown.stdout, shown.stderr
    assert script(environment, MODEL, tmp_path / "run") == {
        "own": ["key_net", "out_net", "query_net"],
        "learns": True,
        "width": {"name": "bahdanau", "width": 4},
        "same": True,
        "steps": True,
    }
    environment.pip_uninstall("additive-bahdanau")
    assert not {"bahdanau", "narrow_bahdanau"} & set(listed(environment))
    built, loaded = script(environment, GONE, tmp_path / "run")
    assert built.startswith("UnknownName: attention: unknown name 'bahdanau'; known: softmax, ")
    assert built.endswith("; if a plugin brings it, install that one here")
    assert "unknown name 'bahdanau'" in loaded
    environment.pip_install(PACKAGE)


def test_it_is_checked_by_name_and_by_its_own_test(environment: Environment) -> None:
    preset = environment.run("polyattn", "check", "narrow_bahdanau", "--json")
    assert preset.returncode == 0, preset.stdout + preset.stderr
    (report,) = json.loads(preset.stdout)
    names = {row["id"].partition("[")[0] for row in report["results"] if row["status"] == "passed"}
    assert {"check_matches_reference", "check_state_dict_roundtrip"} <= names
    own = environment.run(
        "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", PACKAGE / "tests"
    )
    assert own.returncode == 0, own.stdout + own.stderr


def test_it_is_well_typed() -> None:
    # With the settings and the cache of `make check`, which has read torch already.
    source = PACKAGE / "src"
    done = subprocess.run(
        [sys.executable, "-m", "mypy", str(source)],
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": str(source)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout


def script(environment: Environment, code: str, folder: Path) -> object:
    """What a script that is given a folder prints as JSON."""
    done = environment.run("python", "-c", code, folder)
    assert done.returncode == 0, done.stderr
    said: object = json.loads(done.stdout)
    return said
