"""Options that YAML has no words for: a list is read as a tuple or a frozenset, a value as its
enum, and what a model saves is read again."""

from enum import Enum, IntEnum
from typing import Annotated

import pytest
import torch
import yaml
from pydantic import Field

import polyattn
from polyattn.errors import ConfigError
from polyattn.options import Options, as_data, parse
from polyattn.registry import Entry, Registry, discover
from polyattn.spec import VariantSpec


class Side(Enum):
    LEFT = "left"
    RIGHT = "right"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Inner(Options):
    widths: tuple[int, ...] = (1,)


class Rich(Options):
    scale: float | None = None
    spans: tuple[tuple[int, int], ...] = ((0, 1),)
    heads: frozenset[int] = frozenset({0})
    side: Side = Side.LEFT
    sides: frozenset[Side] = frozenset()
    level: Level = Level.LOW
    maybe: tuple[Side, ...] | None = None
    either: Side | float = 1.0
    inner: Inner = Inner()
    some: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(max_length=2)] = ()


class RichAttention(polyattn.SequenceAttention):
    capabilities = polyattn.Capabilities(masks={"causal"})
    Config = Rich

    def attend(self, q, k, v, mask, inputs):
        return self.reference(q, k, v, mask, inputs)


DATA = {
    "spans": [[1, 2], [3, 4]],
    "heads": [10, 2, 3],
    "side": "right",
    "sides": ["right", "left"],
    "level": 2,
    "maybe": ["left", "left"],
    "either": "left",
    "inner": {"widths": [5, 6]},
    "some": [7],
}
WANTED = Rich(
    spans=((1, 2), (3, 4)),
    heads=frozenset({2, 3, 10}),
    side=Side.RIGHT,
    sides=frozenset(Side),
    level=Level.HIGH,
    maybe=(Side.LEFT, Side.LEFT),
    either=Side.LEFT,
    inner=Inner(widths=(5, 6)),
    some=(7,),
)


def test_lists_and_values_are_read_as_what_the_annotation_says():
    found = parse(Rich, DATA, "here")
    assert found == WANTED
    assert hash(found) == hash(WANTED)
    assert (type(found.spans), type(found.spans[0])) == (tuple, tuple)


@pytest.mark.parametrize("config", [Rich(), WANTED], ids=["defaults", "all"])
def test_what_is_written_is_read_again_and_is_plain_yaml(config):
    text = yaml.safe_dump(as_data(config))
    assert parse(Rich, yaml.safe_load(text), "here") == config


def test_sets_are_written_in_one_order():
    # Text hashes differently in every process; numbers in the order of a table's slots.
    assert as_data(WANTED)["heads"] == [2, 3, 10]
    assert as_data(WANTED)["sides"] == ["left", "right"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"side": "lft"}, "here.side = 'lft': expected one of 'left', 'right'"),
        ({"maybe": ["lft"]}, "here.maybe = ['lft']: expected one of 'left', 'right'"),
        ({"level": True}, "here.level = True: expected one of 1, 2"),
        ({"heads": [1, 2, 1]}, "here.heads = [1, 2, 1]: expected every element once, got 1 twice"),
        ({"heads": [True]}, "here.heads[0] = True: should be a valid integer"),
        ({"heads": [[1]]}, "here.heads = [[1]]: should be a valid frozenset"),
        ({"heads": "12"}, "here.heads = '12': should be a valid frozenset"),
        ({"spans": [[1, 2.0]]}, "here.spans[0][1] = 2.0: should be a valid integer"),
        ({"spans": 3}, "here.spans = 3: should be a valid tuple"),
        ({"some": [-1]}, "here.some[0] = -1: should be greater than or equal to 0"),
        ({"inner": {"widths": ["x"]}}, "here.inner.widths[0] = 'x': should be a valid integer"),
        ({"scale": [1.0]}, "here.scale = [1.0]: should be a valid number"),
    ],
)
def test_nothing_else_is_converted(options, message):
    with pytest.raises(ConfigError) as caught:
        parse(Rich, options, "here")
    assert str(caught.value) == message


def test_a_model_with_such_options_is_built_saved_and_opened(tmp_path, monkeypatch):
    spec = VariantSpec(name="rich", target=f"{__name__}:RichAttention")
    entry = Entry(spec=spec, distribution="tests", label="tests:rich", reason="")
    registry = Registry(entries=(*discover().entries, entry))
    monkeypatch.setattr("polyattn.models.build.discover", lambda: registry)
    config = {
        "model": "causal_lm",
        "vocab_size": 5,
        "d_model": 8,
        "layers": 1,
        "heads": 2,
        "attention": {"name": "rich", **DATA},
    }
    path = tmp_path / "model.yaml"
    path.write_text(yaml.safe_dump(config))
    model = polyattn.build(path).eval()
    assert next(iter(model.layers)).mixer.attention.config == WANTED
    assert model.config["attention"]["heads"] == [2, 3, 10]
    polyattn.save(model, tmp_path / "run")
    again = polyattn.load(tmp_path / "run").eval()
    assert again.config == model.config
    assert next(iter(again.layers)).mixer.attention.config == WANTED
    ids = torch.arange(4)[None]
    assert torch.equal(again(ids), model(ids))
    # Tuples and sets in a mapping of Python mean the same.
    given = {**config, "attention": {"name": "rich", **WANTED.model_dump()}}
    assert polyattn.build(given).config == model.config
