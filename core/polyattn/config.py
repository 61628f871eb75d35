"""What a model config may say, and the one line that says what is wrong with it.

A config is data: it names models and variants, never code. Each variant checks its own options;
this file knows the shape around them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pydantic
from pydantic import Field

from polyattn import strict_yaml
from polyattn.capabilities import Sizes
from polyattn.errors import ConfigError, suggestion
from polyattn.layers.heads import head_sizes
from polyattn.options import Options, first_complaint

__all__ = [
    "CausalLMConfig",
    "Choice",
    "EncoderConfig",
    "FeedForwardConfig",
    "NormConfig",
    "PositionConfig",
    "StackConfig",
    "read",
]


_HUGE = 2**31
"""No size of a tensor is as large: beyond it, torch answers with errors of its own."""


class _Kinded(Options):
    """A part that is chosen by its kind: ``{kind: name, ...}``, or the name alone."""

    @pydantic.model_validator(mode="before")
    @classmethod
    def _spell_out(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"kind": value}
        if not isinstance(value, dict | cls):
            raise ValueError("expected a name, or a mapping {kind: name, ...}")
        return value


class NormConfig(_Kinded):
    """Which norm, and whether it stands before or after each part of a block."""

    kind: Literal["layernorm", "rmsnorm"] = "layernorm"
    place: Literal["pre", "post"] = "pre"


class FeedForwardConfig(_Kinded):
    """width: hidden units; default 4 x d_model, two thirds of that for the gated swiglu."""

    kind: Literal["relu", "gelu", "swiglu"] = "gelu"
    width: int | None = Field(default=None, ge=1, lt=_HUGE)


class PositionConfig(_Kinded):
    """base: of the angles, for rope and sinusoidal (default 10,000)."""

    kind: Literal["none", "sinusoidal", "learned", "rope", "alibi"] = "rope"
    base: float | None = Field(default=None, gt=1)


class Choice(Options):
    """One attention of the pattern: a name and the options given with it. path: where it stood."""

    name: str
    options: dict[str, Any]
    path: str


class StackConfig(Options):
    """What every model over a sequence says. Sizes are counted in channels, heads and tokens.

    attention: repeats over the layers. dropout: of embeddings, residuals and feed-forward.
    attention_dropout: the variants' own ``dropout``, where an entry of ``attention`` gives none.
    query_key_norm: normalises each query and key head. max_length: the longest sequence taken.
    """

    model: str
    d_model: int = Field(ge=1, lt=_HUGE)
    layers: int = Field(ge=1, le=10_000)
    heads: int = Field(ge=1, lt=_HUGE)
    kv_heads: int | None = Field(default=None, ge=1, lt=_HUGE)
    attention: tuple[Choice, ...]
    position: PositionConfig = PositionConfig()
    norm: NormConfig = NormConfig()
    feed_forward: FeedForwardConfig = FeedForwardConfig()
    dropout: float = Field(default=0.0, ge=0, lt=1)
    attention_dropout: float = Field(default=0.0, ge=0, lt=1)
    query_key_norm: Literal["none", "layernorm", "rmsnorm"] = "none"
    max_length: int | None = Field(default=None, ge=1, lt=_HUGE)

    @property
    def sizes(self) -> Sizes:
        """The head geometry of every layer. Raises: ConfigError where it does not divide."""
        return head_sizes(self.d_model, self.heads, self.kv_heads, self.max_length)

    def choice(self, layer: int) -> Choice:
        """The attention of a layer, counted from 0."""
        return self.attention[layer % len(self.attention)]


class EncoderConfig(StackConfig):
    """Token ids, or embeddings where vocab_size is None, to hidden states."""

    model: Literal["encoder"]
    vocab_size: int | None = Field(default=None, ge=1, lt=_HUGE)


class CausalLMConfig(StackConfig):
    """Token ids to the logits of the next token."""

    model: Literal["causal_lm"]
    vocab_size: int = Field(ge=1, lt=_HUGE)


def read(source: Mapping[str, Any] | str | Path, known: Mapping[str, type[StackConfig]]) -> Any:
    """The config of a mapping, or of a YAML file, as the class that its ``model`` names.

    known: the classes by name of model. What was given is never changed.

    Raises: ConfigError, one line with the path of the fault and the way out.
    """
    data, where = source, ""
    if isinstance(source, str | Path):
        data, where = strict_yaml.read(source), f"{source}: "
    if not isinstance(data, Mapping):
        raise ConfigError(
            f"{where}expected a mapping such as {{model: {next(iter(known))}, ...}}, got "
            f"{_kind(data)}"
        )
    try:
        return _parse(_plain(data), known)
    except ConfigError as error:
        raise ConfigError(f"{where}{error}") from None


def _parse(data: dict[str, Any], known: Mapping[str, type[StackConfig]]) -> StackConfig:
    names = ", ".join(known)
    name = data.get("model")
    if "model" not in data:
        raise ConfigError(f"model: missing; give one of {names}")
    if not isinstance(name, str) or name not in known:
        hint = suggestion(name, known) if isinstance(name, str) else ""
        raise ConfigError(f"model = {name!r}: unknown model{hint}; known are {names}")
    schema = known[name]
    # Before what is missing: a misspelt key is usually the missing one.
    for key in data:
        if key not in schema.model_fields:
            hint = suggestion(key, schema.model_fields) if isinstance(key, str) else ""
            listed = ", ".join(schema.model_fields)
            raise ConfigError(f"{key}: unknown key{hint or f'; known are {listed}'}")
    if "attention" not in data:
        raise ConfigError("attention: missing; name a variant, or a list of them (`polyattn list`)")
    data["attention"] = _pattern(data["attention"])
    try:
        config = schema.model_validate(data)
    except pydantic.ValidationError as error:
        raise ConfigError(first_complaint(error, schema, "").removeprefix(".")) from None
    _check_relations(config)
    return config


def _pattern(value: Any) -> tuple[Choice, ...]:
    if not isinstance(value, list):
        return (_choice(value, "attention"),)
    if not value:
        raise ConfigError("attention = []: expected at least one name; `polyattn list` shows them")
    return tuple(_choice(entry, f"attention[{i}]") for i, entry in enumerate(value))


def _choice(value: Any, path: str) -> Choice:
    options = {"name": value} if isinstance(value, str) else value
    if not isinstance(options, dict):
        raise ConfigError(
            f"{path} = {value!r}: expected a name, or a mapping {{name: ..., option: value}}"
        )
    options = dict(options)
    for key in options:
        if not isinstance(key, str):
            raise ConfigError(f"{path}.{key!r}: expected text as the key, got {_kind(key)}")
    if "name" not in options:
        for key in options:
            if hint := suggestion(key, ["name"]):
                raise ConfigError(f"{path}.{key}: unknown key{hint}")
        raise ConfigError(f"{path}.name: missing; name a variant (`polyattn list` shows them)")
    name = options.pop("name")
    if not isinstance(name, str):
        raise ConfigError(f"{path}.name = {name!r}: expected the name of a variant, in text")
    return Choice(name=name, options=options, path=path)


def _check_relations(config: StackConfig) -> None:
    """What pydantic cannot say in one line: keys that must fit each other."""
    width = config.sizes.head_dim
    if config.layers % len(config.attention):
        raise ConfigError(
            f"attention: expected a pattern whose length divides layers = {config.layers}, got "
            f"{len(config.attention)} entries; change either number"
        )
    kind = config.position.kind
    if config.position.base is not None and kind not in ("rope", "sinusoidal"):
        raise ConfigError(
            f"position.base = {config.position.base:g}: expected only with rope or sinusoidal, "
            f"got kind {kind!r}; leave it out"
        )
    if kind == "learned" and config.max_length is None:
        raise ConfigError("max_length: missing; learned positions need the longest length")
    if kind == "rope" and width % 2:
        raise ConfigError(
            f"position.kind = 'rope': expected an even head width, as channels turn in pairs, got "
            f"d_model / heads = {width}; change either, or use alibi, learned or sinusoidal"
        )


def _plain(value: Any) -> Any:
    """A copy made of dicts and lists, whatever mappings and sequences were given."""
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return value


def _kind(value: Any) -> str:
    names = {list: "a list", dict: "a mapping", str: "text", type(None): "nothing"}
    return names.get(type(value), f"{type(value).__name__} {value!r}")
