"""A. Contract: a config is data that makes the same variant again, and stays as it was given."""

from __future__ import annotations

import dataclasses
import json

from polyattn.capabilities import Sizes
from polyattn.contract import SequenceAttention
from polyattn.errors import ConfigError
from polyattn.options import Options, as_data, parse
from polyattn.testing.process.contained import contained
from polyattn.testing.results import Mismatch, Seen, proves
from polyattn.testing.subjects.sequence import blaming
from polyattn.testing.subjects.variant import VariantSubject, seeded
from polyattn.testing.tools.cases import SQUARE, Sample
from polyattn.testing.tools.numerics import compare_bits, need_tensor

SIZES = frozenset(field.name for field in dataclasses.fields(Sizes))


@proves(
    "A config written down and read again makes the same variant; building and calling leave it as "
    "it was given, and repr shows its options.",
    causes=(
        "an option that is transformed, dropped or excluded on its way through the config",
        "a list or a dict among the options, which build() or attend() writes to",
        "a size among the options: heads and widths belong to Sizes",
        "extra_repr() overridden without the options",
    ),
)
def check_config_roundtrip(subject: VariantSubject) -> None:
    shape = subject.fit(SQUARE)
    config, given = subject.config, f"{subject.config!r}"
    mixed = sorted(SIZES & type(config).model_fields.keys())
    if mixed:
        raise Mismatch(Seen(what=f"sizes among the options: {mixed}", given=given))
    with blaming(given):
        before = _written(config)
        sample = subject.draw(shape)
        instance = subject.at(shape)
        module = instance.module()
        assert isinstance(module, SequenceAttention)
        out = instance(sample)
        again = parse(type(config), json.loads(before), subject.name)
        if _written(config) != before:
            what = f"its config was changed, from {before} to {_written(config)}"
            raise Mismatch(Seen(what=what, given=given))
        for what, found in (("read again is", again), ("of the variant is", module.config)):
            if found != config:
                raise Mismatch(Seen(what=f"the config {what} {found!r}", given=given))
        if module.sizes != shape.sizes:
            what = f"its sizes are {module.sizes}, expected {shape.sizes}"
            raise Mismatch(Seen(what=what, given=given))
        got = _copied(subject, again, module, sample)
    told = "the output of the variant built from the config read again, with the same parameters"
    compare_bits(told, need_tensor(told, got, given), out, given=given)
    _shown(module, given)


def _written(config: Options) -> str:
    return json.dumps(as_data(config), allow_nan=False)


def _copied(
    subject: VariantSubject, config: Options, like: SequenceAttention, sample: Sample
) -> object:
    """What a variant built afresh gives with the parameters of another."""
    with seeded(1):
        twin = subject.factory(config, like.sizes)
    twin = subject.place.settle(twin.to(sample.dtype).eval())
    twin.load_state_dict(like.state_dict())
    return twin(sample.q, sample.k, sample.v, sample.mask, sample.inputs)


def _shown(module: SequenceAttention, given: str) -> None:
    with blaming(f"repr of {given}"):
        text = repr(module)
    config = module.config
    hidden = [name for name, value in config if f"{name}={value!r}" not in text]
    if hidden:
        raise Mismatch(Seen(what=f"repr does not show {hidden}: {text}", given=given))


@proves(
    "Built without sizes, or without a longest length, it is either built or raises ConfigError, "
    "which says what is missing.",
    causes=(
        "self.sizes read where self.require_sizes() would ask for them",
        "a table of max_length rows, made without a look whether there is a max_length",
    ),
)
def check_missing_sizes(subject: VariantSubject) -> None:
    sizes = subject.fit(SQUARE).sizes
    for given, fewer in (
        ("no sizes", None),
        ("sizes without max_length", dataclasses.replace(sizes, max_length=None)),
    ):
        try:
            with contained():
                subject.factory(subject.config, fewer)
        except ConfigError:
            continue
        except Exception as error:
            what = f"built with {given} it raised {type(error).__name__}, expected ConfigError"
            raise Mismatch(Seen(what=f"{what}: {error}", given=given)) from error
