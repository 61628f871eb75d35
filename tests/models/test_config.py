"""Configs: what they build, what they resolve to, and one line for each way to get them wrong."""

import copy
from types import MappingProxyType

import pytest
import torch
from torch import nn

import polyattn
from polyattn.errors import ConfigError, PolyattnError, UnknownName, Unsupported
from polyattn.registry import Entry, Registry, discover
from polyattn.spec import VariantSpec

LM = {
    "model": "causal_lm",
    "vocab_size": 11,
    "d_model": 16,
    "layers": 2,
    "heads": 4,
    "attention": "softmax",
}


def changed(**changes):
    """LM with other keys; ... leaves one out."""
    config = {**copy.deepcopy(LM), **changes}
    return {key: value for key, value in config.items() if value is not ...}


def refusal(config, error=PolyattnError):
    """What build says to a config, in one line."""
    with pytest.raises(error) as caught:
        polyattn.build(config)
    message = str(caught.value)
    assert "\n" not in message
    assert "pydantic" not in message
    return message


def test_the_whole_config_of_the_readme_builds():
    model = polyattn.build(
        {
            "model": "causal_lm",
            "vocab_size": 256,
            "d_model": 64,
            "layers": 6,
            "heads": 8,
            "kv_heads": 2,
            "attention": ["sdpa", {"name": "dense", "scale": 0.5}, "softmax"],
            "position": "rope",
            "norm": {"kind": "rmsnorm", "place": "pre"},
            "feed_forward": {"kind": "swiglu", "width": 96},
            "dropout": 0.1,
            "attention_dropout": 0.0,
        }
    )
    mixers = [block.mixer for block in model.layers]
    assert [type(m.attention).__name__ for m in mixers] == ["Sdpa", "Dense", "Operation"] * 2
    assert mixers[1].attention.config.scale == mixers[4].attention.config.scale == 0.5
    assert mixers[0].sizes.kv_heads == 2
    assert isinstance(model.norm, nn.RMSNorm)
    assert model.layers.__next__().feed_forward.gate_up.weight.shape == (192, 64)


def test_nothing_given_is_changed_and_any_mapping_will_do():
    config = {**changed(), "norm": {"kind": "rmsnorm"}, "attention": ["softmax", {"name": "sdpa"}]}
    before = copy.deepcopy(config)
    model = polyattn.build(MappingProxyType(config))
    model.config["layers"] = 99
    model.config["attention"][0]["name"] = "other"
    assert config == before
    assert model.config["layers"] == 2
    assert model.config["attention"][0]["name"] == "softmax"


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"attention": [{"name": "sdpa", "dropout": 0.25}, "dense"], "attention_dropout": 0.5},
        {"position": {"kind": "rope", "base": 500.0}, "feed_forward": "swiglu"},
        {"position": "learned", "max_length": 9, "norm": "rmsnorm", "query_key_norm": "layernorm"},
        {"position": "sinusoidal", "norm": {"place": "post"}},
        {"attention": "mistral_window"},
        {"attention": "polyattn:linear", "position": "none"},
    ],
    ids=str,
)
def test_the_resolved_config_builds_the_same_model(changes, tmp_path):
    model = polyattn.build(changed(**changes))
    again = polyattn.build(model.config)
    assert again.config == model.config
    assert repr(again) == repr(model)
    assert {n: p.shape for n, p in again.named_parameters()} == {
        n: p.shape for n, p in model.named_parameters()
    }


def test_defaults_and_presets_are_written_out():
    config = polyattn.build(changed(attention="mistral_window", attention_dropout=0.0)).config
    assert config["attention"]["name"] == "local_window"
    assert (config["attention"]["left"], config["attention"]["right"]) == (4095, 0)
    assert config["feed_forward"] == {"kind": "gelu", "width": 64}
    assert config["position"] == {"kind": "rope", "base": 10_000.0}
    assert config["kv_heads"] == 4


def test_a_dropout_for_all_layers_is_the_variants_own_and_an_entry_may_differ():
    attention = ["softmax", {"name": "softmax", "dropout": 0.5}]
    model = polyattn.build(changed(attention=attention, attention_dropout=0.25))
    found = [block.mixer.attention.config.dropout for block in model.layers]
    assert found == [0.25, 0.5]
    assert polyattn.build(model.config).config == model.config


def test_a_file_builds_what_its_mapping_does(tmp_path):
    path = tmp_path / "model.yaml"
    path.write_text(
        "model: causal_lm\nvocab_size: 11\nd_model: 16\nlayers: 2\nheads: 4\n"
        "attention: softmax\ndropout: 1e-3\n"
    )
    assert polyattn.build(path).config == polyattn.build(changed(dropout=0.001)).config
    assert polyattn.build(str(path)).config["dropout"] == 0.001


NAN, INF = float("nan"), float("inf")
WRONG = [
    # what is changed, and what the message must say: the path first, then value and way out
    ({"model": "causl_lm"}, "model = 'causl_lm': unknown model, did you mean 'causal_lm'?"),
    ({"model": ...}, "model: missing; give one of encoder, causal_lm"),
    ({"model": 3}, "model = 3: unknown model"),
    ({"lyers": 2}, "lyers: unknown key, did you mean 'layers'?"),
    ({"vocab": 11, "vocab_size": ...}, "vocab: unknown key, did you mean 'vocab_size'?"),
    ({"vocab_size": ...}, "vocab_size: missing"),
    ({"attention": ...}, "attention: missing; name a variant"),
    ({"vocab_size": True}, "vocab_size = True: should be a valid integer"),
    ({"layers": 2.0}, "layers = 2.0: should be a valid integer"),
    ({"heads": "4"}, "heads = '4': should be a valid integer"),
    ({"layers": 0}, "layers = 0: should be greater than or equal to 1"),
    ({"d_model": NAN}, "d_model = nan: should be a valid integer"),
    ({"dropout": NAN}, "dropout = nan: should be a finite number"),
    ({"attention_dropout": INF}, "attention_dropout = inf: should be a finite number"),
    ({"dropout": 1.0}, "dropout = 1.0: should be less than 1"),
    ({"dropout": -0.5}, "dropout = -0.5: should be greater than or equal to 0"),
    ({"heads": 3}, "heads = 3: expected a divisor of d_model = 16"),
    ({"kv_heads": 3}, "kv_heads = 3: expected a divisor of heads = 4"),
    (
        {"layers": 3, "attention": ["softmax", "sdpa"]},
        "attention: expected a pattern whose length divides layers = 3, got 2 entries",
    ),
    ({"attention": []}, "attention = []: expected at least one name"),
    ({"attention": 3}, "attention = 3: expected a name, or a mapping"),
    ({"attention": None}, "attention = None: expected a name, or a mapping"),
    ({"attention": ["softmax", ["sdpa"]]}, "attention[1] = ['sdpa']: expected a name"),
    ({"attention": ["softmax", {}]}, "attention[1].name: missing"),
    ({"attention": {"nme": "sdpa"}}, "attention.nme: unknown key, did you mean 'name'?"),
    ({"attention": {"name": 3}}, "attention.name = 3: expected the name of a variant"),
    ({"attention": {"name": "sdpa", 3: 4}}, "attention.3: expected text as the key"),
    ({"attention": "sofmax"}, "attention: unknown name 'sofmax', did you mean 'softmax'?"),
    (
        {"attention": "window"},
        "attention: unknown name 'window', did you mean 'local_window', or 'windowed', a member "
        "of 'softmax'?",
    ),
    ({"attention": "dens"}, "attention: unknown name 'dens', did you mean 'dense', a member of"),
    ({"attention": "mistral"}, "attention: unknown name 'mistral', did you mean 'mistral_window'?"),
    ({"attention": ["sdpa", "x"]}, "attention[1]: unknown name 'x'; known: softmax"),
    (
        {"attention": ["softmax", {"name": "local_window", "lft": 3, "right": 0}]},
        "attention[1].lft (local_window): unknown key, did you mean 'left'?",
    ),
    (
        {"attention": {"name": "local_window", "left": -1, "right": 0}},
        "attention.left (local_window) = -1: should be greater than or equal to 0",
    ),
    (
        {"attention": {"name": "softmax", "scale": NAN}},
        "attention.scale (softmax) = nan: should be a finite number",
    ),
    ({"attention": "se"}, "attention (se): expected a variant over sequences"),
    ({"position": "rop"}, "position.kind = 'rop': should be 'none', 'sinusoidal'"),
    ({"position": 3}, "position = 3: expected a name, or a mapping {kind: name, ...}"),
    (
        {"position": {"kind": "rope", "bas": 3.0}},
        "position.bas: unknown key, did you mean 'base'?",
    ),
    ({"position": "learned"}, "max_length: missing; learned positions need"),
    (
        {"position": {"kind": "alibi", "base": 3.0}},
        "position.base = 3: expected only with rope or sinusoidal, got kind 'alibi'",
    ),
    ({"d_model": 12}, "position.kind = 'rope': expected an even head width"),
    ({"norm": {"knd": "rmsnorm"}}, "norm.knd: unknown key, did you mean 'kind'?"),
    ({"norm": {"place": "mid"}}, "norm.place = 'mid': should be 'pre' or 'post'"),
    (
        {"feed_forward": {"kind": "gelu", "width": 0}},
        "feed_forward.width = 0: should be greater than or equal to 1",
    ),
    ({"query_key_norm": True}, "query_key_norm = True: should be 'none', 'layernorm'"),
    ({"max_length": -3}, "max_length = -3: should be greater than or equal to 1"),
]


@pytest.mark.parametrize(("changes", "expected"), WRONG, ids=[m for _, m in WRONG])
def test_a_mistake_is_one_line_with_its_path(changes, expected):
    assert refusal(changed(**changes)).startswith(expected)


def test_an_unknown_name_is_its_own_kind_of_error():
    refusal(changed(attention="sofmax"), UnknownName)


IMPOSSIBLE = [
    ({"attention": "linformer"}, "attention (linformer) refuses: mask = causal", "drop"),
    ({"attention": "linformer", "max_length": 8}, "attention (linformer) refuses", "causal"),
    (
        {"attention": ["softmax", "linear"], "attention_dropout": 0.25},
        "attention_dropout = 0.25: attention[1] (linear) refuses: dropout = 0.25",
        "set attention_dropout to 0",
    ),
    ({"attention": "linear", "position": "alibi"}, "attention (linear) refuses", "alibi"),
    (
        {"attention": "flash", "attention_dropout": 0.25},
        "attention_dropout = 0.25: attention (flash) refuses: dropout = 0.25",
        "",
    ),
    (
        {"attention": "windowed"},
        "attention (windowed) refuses: mask = without window",
        "windowed = a member of 'softmax' (takes the calls that it is made for): "
        "name 'softmax', which asks each of its members, or name 'local_window'",
    ),
    (
        {"attention": "windowed", "attention_dropout": 0.25},  # local_window has no dropout
        "attention_dropout = 0.25: attention (windowed) refuses: dropout = 0.25",
        "name 'softmax', which asks each of its members",
    ),
    (
        {"attention": ["softmax", "polyattn:windowed"]},
        "attention[1] (polyattn:windowed) refuses: mask = without window",
        "which asks each of its members, or name 'local_window'",
    ),
    (
        {"attention": {"name": "local_window", "left": 3, "right": 2}},
        "attention (local_window) refuses: right = 2 (takes 0 in a causal_lm): set right to 0",
        "",
    ),
]


@pytest.mark.parametrize(
    ("changes", "start", "inside"), IMPOSSIBLE, ids=[s for _, s, _ in IMPOSSIBLE]
)
def test_what_cannot_work_is_refused_when_built(changes, start, inside):
    with pytest.raises(Unsupported) as caught:
        polyattn.build(changed(**changes))
    assert str(caught.value).startswith(start)
    assert inside in str(caught.value)
    assert caught.value.refusals


def test_a_preset_that_looks_ahead_is_refused_too_and_an_encoder_may():
    ahead = polyattn.PresetSpec(
        name="ahead", variant="local_window", options={"left": 2, "right": 1}
    )
    entries = (*discover().entries, Entry(spec=ahead, distribution="user", label="a file"))
    registry = Registry(entries=entries)
    with pytest.raises(Unsupported, match=r"^attention \(ahead\) refuses: right = 1 \(takes 0"):
        polyattn.build(changed(attention="ahead"), registry=registry)
    polyattn.build(changed(attention="ahead", model="encoder"), registry=registry)
    asked = changed(attention={"name": "ahead", "right": 0})
    assert polyattn.build(asked, registry=registry).new_state(1) is not None


def test_an_encoder_may_hold_what_is_never_causal_and_needs_its_length():
    config = {**LM, "model": "encoder", "attention": "linformer", "position": "none"}
    assert refusal(config).startswith("attention (linformer)")
    assert "max_length" in refusal(config)
    model = polyattn.build({**config, "max_length": 8})
    assert model(torch.zeros(2, 8, dtype=torch.long)).shape == (2, 8, 16)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (3, "expected a mapping such as {model: encoder, ...}, got int 3"),
        ([LM], "expected a mapping such as {model: encoder, ...}, got a list"),
        (None, "expected a mapping such as {model: encoder, ...}, got nothing"),
    ],
)
def test_what_is_no_mapping_is_said(given, message):
    assert refusal(given, ConfigError) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "model.yaml: expected a YAML file"),
        ("- 1\n", "model.yaml: expected a mapping"),
        ("", "model.yaml: expected a mapping such as {model: encoder, ...}, got nothing"),
        ("a: [1\n", "model.yaml:2: "),
        ("model: encoder\nmodel: encoder\n", "model.yaml:2: the key 'model' comes twice"),
        ("model: encoder\nattention: !!python/name:os.system\n", "model.yaml:2: the tag"),
        ("model: encoder\nheds: 2\n", "model.yaml: heds: unknown key, did you mean 'heads'?"),
    ],
)
def test_a_bad_file_is_one_line_with_its_place(text, message, tmp_path):
    path = tmp_path / "model.yaml"
    if text is not None:
        path.write_text(text)
    said = refusal(path, ConfigError)
    assert said.startswith(str(tmp_path))
    assert message in said


class Odd(PolyattnError):
    """An error of a stranger's, which takes more than a message."""

    def __init__(self, part, number):
        super().__init__(f"{part} is wrong by {number}")


class Talkative(PolyattnError):
    def __init__(self, part):
        super().__init__(f"I say that {part}")


class Faulty(polyattn.SequenceAttention):
    capabilities = polyattn.Capabilities(masks={"causal"})


@pytest.mark.parametrize("error", [Odd("the seventh head", 3), Talkative("the seventh head")])
@pytest.mark.parametrize("stage", ["build", "resolve"])
def test_a_strangers_own_error_keeps_its_words_and_gains_the_path(error, stage, monkeypatch):
    def fails(*_, **__):
        raise error

    spec = VariantSpec(name="faulty", target=f"{__name__}:Faulty")
    entry = Entry(spec=spec, distribution="tests", label="tests:faulty", reason="")
    registry = Registry(entries=(entry,))
    if stage == "build":
        monkeypatch.setattr(Faulty, "build", fails)
    else:
        monkeypatch.setattr("polyattn.models.attention.resolve", fails)
    with pytest.raises(ConfigError) as caught:
        polyattn.build(changed(attention="faulty"), registry=registry)
    assert "attention" in str(caught.value)
    assert str(caught.value).endswith(str(error))


def test_no_class_can_be_named_as_code():
    said = refusal(changed(attention="polyattn_plugins.softmax:Dense"), UnknownName)
    assert said.startswith("attention: unknown name")


@pytest.mark.parametrize("key", ["vocab_size", "d_model", "heads", "kv_heads", "max_length"])
def test_no_size_is_beyond_what_a_tensor_can_have(key):
    message = refusal(changed(**{key: 10**30}), ConfigError)
    assert message.startswith(f"{key} = 1000")
    assert "less than 2147483648" in message
