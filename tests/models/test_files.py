"""Folders: what is written, what is read back, and what another variant makes of it."""

import re

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

import polyattn
from polyattn.errors import ConfigError, UnknownName
from polyattn.models.files import load_weights
from polyattn.models.stack import SequenceModel

CONFIG = {
    "model": "causal_lm",
    "vocab_size": 11,
    "d_model": 16,
    "layers": 2,
    "heads": 4,
    "attention": "softmax",
    "position": "alibi",
    "max_length": 8,
}
IDS = torch.arange(8)[None]


def built(**changes) -> SequenceModel:
    torch.manual_seed(0)
    return polyattn.build({**CONFIG, **changes}).eval()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    "changes",
    [{}, {"position": "learned"}, {"attention": "linear", "position": "rope"}],
    ids=str,
)
def test_what_was_saved_comes_back(changes, dtype, tmp_path):
    model = built(**changes).to(dtype)
    before = model(IDS)
    polyattn.save(model, tmp_path / "deep" / "run")
    torch.manual_seed(1)
    again = polyattn.load(tmp_path / "deep" / "run").eval()
    assert again(IDS).dtype == dtype
    assert torch.equal(again(IDS), before)
    assert again.config == model.config


def test_a_folder_holds_two_formats_and_no_code(tmp_path):
    model = built()
    model(IDS)
    polyattn.save(model, tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"config.yaml", "model.safetensors", "versions.yaml"}
    assert yaml.safe_load((tmp_path / "config.yaml").read_text()) == model.config
    assert set(yaml.safe_load((tmp_path / "versions.yaml").read_text())) == {
        "polyattn",
        "python",
        "torch",
    }
    assert load_file(tmp_path / "model.safetensors").keys() == dict(model.named_parameters()).keys()


def test_the_keys_of_a_checkpoint_do_not_depend_on_calls():
    model = built(position="rope")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model(IDS[:, :3])
    model(IDS)
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_nothing_is_overwritten_unless_asked(tmp_path):
    polyattn.save(built(), tmp_path)
    with pytest.raises(ConfigError, match=r"config\.yaml.*another folder, or overwrite=True"):
        polyattn.save(built(heads=2), tmp_path)
    assert polyattn.load(tmp_path).config["heads"] == 4
    polyattn.save(built(heads=2), tmp_path, overwrite=True)
    assert polyattn.load(tmp_path).config["heads"] == 2


@pytest.mark.parametrize("variant", ["dense", "sdpa", "linear"])
def test_a_checkpoint_opens_with_another_variant(variant, tmp_path, recwarn):
    model = built(position="rope")
    polyattn.save(model, tmp_path)
    other = polyattn.load(tmp_path, {**model.config, "attention": variant}).eval()
    assert not recwarn.list
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, other.get_parameter(name))
    same = torch.allclose(other(IDS), model(IDS), atol=1e-5)
    assert same == (variant != "linear")


def test_what_two_variants_do_not_share_is_named(tmp_path):
    plain, gated = built(position="none"), built(position="none", attention="gated_linear")
    extra = sorted(set(gated.state_dict()) - set(plain.state_dict()))
    assert extra
    polyattn.save(plain, tmp_path / "plain")
    polyattn.save(gated, tmp_path / "gated")
    with pytest.warns(UserWarning, match="as initialised: " + extra[0]):
        polyattn.load(tmp_path / "plain", gated.config)
    with pytest.warns(UserWarning, match="left out of the file: " + extra[0]):
        polyattn.load(tmp_path / "gated", plain.config)
    opened = load_weights(built(position="none"), tmp_path / "gated")
    assert opened.left_out == tuple(extra)
    assert opened.untouched == ()


def test_a_config_that_does_not_fit_its_weights_is_an_error(tmp_path):
    model = built()
    polyattn.save(model, tmp_path)
    with pytest.raises(ConfigError, match=r"expected \(22, 16\), got \(11, 16\)"):
        polyattn.load(tmp_path, {**model.config, "vocab_size": 22})
    text = (tmp_path / "config.yaml").read_text()
    (tmp_path / "config.yaml").write_text(text.replace("layers: 2", "layers: 1"))
    with pytest.raises(ConfigError, match=r"left out of the file: blocks\.1\."):
        polyattn.load(tmp_path)


def test_a_missing_or_damaged_file_is_one_line(tmp_path):
    with pytest.raises(ConfigError, match=r"config\.yaml: expected a YAML file"):
        polyattn.load(tmp_path / "nowhere")
    polyattn.save(built(), tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"\x80\x04pickle")
    with pytest.raises(ConfigError, match=r"model\.safetensors: expected a safetensors file"):
        polyattn.load(tmp_path)
    weights.unlink()
    with pytest.raises(ConfigError, match=r"model\.safetensors: missing"):
        polyattn.load(tmp_path)


def test_a_folder_can_name_no_code(tmp_path):
    polyattn.save(built(), tmp_path)
    path = tmp_path / "config.yaml"
    path.write_text(path.read_text().replace("name: softmax", "name: os:system"))
    with pytest.raises(UnknownName, match="os:system"):
        polyattn.load(tmp_path)


def test_a_model_composed_by_hand_has_no_config_to_save(tmp_path):
    from polyattn.models.encoder import Encoder
    from polyattn.models.stack import TokenEmbedding

    with pytest.raises(ConfigError, match="composed by hand"):
        polyattn.save(Encoder(TokenEmbedding(3, 4), []), tmp_path)


@pytest.mark.parametrize("wrong", [torch.int64, torch.bool, torch.float64], ids=str)
def test_a_tensor_of_another_dtype_is_refused_by_name(wrong, tmp_path):
    polyattn.save(built(), tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    name = sorted(weights)[1]
    weights[name] = weights[name].to(wrong)
    save_file(weights, tmp_path / "model.safetensors")
    expected = f"{re.escape(name)}: expected torch.float32, as the other weights, got {wrong}"
    with pytest.raises(ConfigError, match=expected):
        polyattn.load(tmp_path)


def test_weights_without_any_float_are_refused(tmp_path):
    polyattn.save(built(), tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    save_file({name: x.long() for name, x in weights.items()}, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match=r"expected a floating dtype, got torch\.int64"):
        polyattn.load(tmp_path)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda path: polyattn.save(None, path), "a model that polyattn.build made, .* got None"),
        (lambda path: polyattn.save(torch.nn.Linear(2, 2), path), "got a Linear"),
        (lambda path: polyattn.save(built(), path / "file"), "expected a folder, got a file"),
        (lambda path: polyattn.save(built(), path / "file" / "x"), "a folder that can be made"),
        (lambda path: polyattn.save(built(), None), "save: expected the path of a folder"),
        (lambda path: polyattn.load(None), "load: expected the path of a folder, got None"),
        (lambda path: load_weights(built(), 3), "the path of a folder, got a int"),
    ],
)
def test_what_cannot_be_saved_or_loaded_is_said_in_one_line(call, said, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=said) as stopped:
        call(tmp_path)
    assert "\n" not in str(stopped.value)


def test_what_load_would_refuse_is_not_saved(tmp_path):
    model = built()
    next(model.parameters()).data = next(model.parameters()).data.double()
    with pytest.raises(
        ConfigError, match=r"one floating dtype, got torch\.float32, torch\.float64"
    ):
        polyattn.save(model, tmp_path / "mixed")
    assert not (tmp_path / "mixed").exists()
