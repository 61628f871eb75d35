"""Three strangers' packages, installed for real beside polyattn in a throw-away environment."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.environments import ROOT, Environment, borrowing_environment

HERE = Path(__file__).parent

MODEL = """
import json, torch, polyattn
torch.manual_seed(0)
config = {
    "model": "causal_lm", "vocab_size": 11, "d_model": 16, "layers": 3, "heads": 2,
    "attention": ["angular", "cool_cosine", "softmax"],
}
model = polyattn.build(config)
ids = torch.randint(0, 11, (2, 9))
changed = ids.clone()
changed[:, -1] = (changed[:, -1] + 1) % 11
logits, after = model(ids), model(changed)
logits.square().mean().backward()
again = polyattn.build(model.config)
print(json.dumps({
    "shape": list(logits.shape),
    "used": sorted({type(m).__name__ for m in model.modules() if "acme" in type(m).__module__}),
    "temperatures": [m.config.temperature for m in model.modules()
                     if type(m).__name__ == "Cosine"],
    "causal": bool(torch.allclose(logits[:, :-1], after[:, :-1], atol=1e-6)),
    "differs": bool(not torch.allclose(logits[:, -1], after[:, -1])),
    "learns": all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None),
    "same": again.config == model.config,
}))
"""

DIRECT = """
import json, torch, polyattn
q, k, v = (torch.randn(1, 2, 5, 4, dtype=torch.float64) for _ in range(3))
made = polyattn.create("angular", temperature=3.0)
mask = polyattn.Mask.causal()
close = torch.allclose(made(q, k, v, mask), made.expected(q, k, v, mask))
print(json.dumps({"close": bool(close), "temperature": made.config.temperature}))
"""


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    made = borrowing_environment(tmp_path_factory.mktemp("strangers") / "env")
    made.pip_install(wheel, HERE / "acme", HERE / "twin", HERE / "broken")
    return made


def listed(environment: Environment, *options: str) -> dict[str, dict[str, str]]:
    code = (
        "import sys; from polyattn.cli.main import run; "
        f"sys.argv = ['polyattn', {', '.join(map(repr, options))}{', ' if options else ''}"
        "'list', '--json']; run()"
    )
    data = environment.script(code)
    return {
        **{row["name"]: row for row in data["names"]},
        **{row["plugin"]: row for row in data["failed"]},
    }


def test_the_first_is_found_and_listed(environment: Environment) -> None:
    names = listed(environment)
    assert names["angular"]["distribution"] == "acme-attention"
    assert names["cool_cosine"]["kind"] == "preset"
    assert names["softmax"]["distribution"] == "polyattn"


def test_the_first_is_created_and_agrees_with_its_reference(environment: Environment) -> None:
    assert environment.script(DIRECT) == {"close": True, "temperature": 3.0}


def test_the_first_is_used_in_a_model_config(environment: Environment) -> None:
    assert environment.script(MODEL) == {
        "shape": [2, 9, 11],
        "used": ["Cosine"],
        "temperatures": [10.0, 2.0],
        "causal": True,
        "differs": True,
        "learns": True,
        "same": True,
    }


def test_the_first_is_shown_and_explained(environment: Environment) -> None:
    shown = environment.run("polyattn", "show", "angular")
    assert shown.returncode == 0, shown.stderr
    assert "temperature" in shown.stdout
    assert "Query-Key Normalization" in shown.stdout
    explained = environment.run("polyattn", "explain", "angular", "--bias")
    assert "refuses" in explained.stdout
    assert "mask = bias" in explained.stdout


def test_the_second_clashes_and_both_can_still_be_asked_for(environment: Environment) -> None:
    names = listed(environment)
    assert "local_window" not in names
    assert {"polyattn:local_window", "twin-attention:local_window"} <= set(names)
    clash = environment.run("polyattn", "show", "local_window")
    assert clash.returncode == 2
    assert "polyattn and twin-attention" in clash.stderr
    assert "'polyattn:local_window' or 'twin-attention:local_window'" in clash.stderr
    assert environment.run("polyattn", "show", "polyattn:local_window").returncode == 0


def test_the_third_fails_to_import_and_stops_nobody(environment: Environment) -> None:
    failure = listed(environment)["broken-attention:main"]
    assert failure["reason"].startswith("ModuleNotFoundError: No module named 'a_package_that")
    asked = environment.run("polyattn", "show", "broken-attention:thing")
    assert asked.returncode == 2
    assert "a_package_that_nobody_has" in asked.stderr
    unknown = environment.run("polyattn", "show", "unheard_of")
    assert "broken-attention:main (ModuleNotFoundError" in unknown.stderr


def test_strangers_are_blocked_on_request(environment: Environment) -> None:
    names = listed(environment, "--no-plugins")
    assert not {"angular", "broken-attention:main", "twin-attention:local_window"} & set(names)
    assert names["local_window"]["distribution"] == "polyattn"


def test_the_first_is_well_typed() -> None:
    """The example of a plugin, annotated: strict type checking has no complaint."""
    # With the settings and the cache of `make check`, which has read torch already.
    outcome = subprocess.run(
        [sys.executable, "-m", "mypy", str(HERE / "acme" / "acme_attention")],
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": str(HERE / "acme")},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert outcome.returncode == 0, outcome.stdout
