"""From a config to a model: everything that cannot work is said here, before a step is trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torch import nn

from polyattn.capabilities import Part
from polyattn.config import CausalLMConfig, EncoderConfig, StackConfig, read
from polyattn.layers.blocks import RESIDUALS, Block, Residual
from polyattn.layers.feed_forward import FEED_FORWARDS
from polyattn.layers.multi_head import MultiHeadAttention
from polyattn.layers.norms import NORMS
from polyattn.layers.positions import Alibi, HeadPosition, Learned, Rotary, Sinusoidal
from polyattn.models.attention import Plan, plan
from polyattn.models.causal_lm import CausalLM
from polyattn.models.encoder import Encoder
from polyattn.models.stack import SequenceModel, TokenEmbedding
from polyattn.registry import Registry, discover

__all__ = ["build"]

_BASE = 10_000.0


def build(
    config: Mapping[str, Any] | str | Path, *, registry: Registry | None = None
) -> SequenceModel:
    """The model of a config: a mapping, or the path of a YAML file. What is given never changes.

    ``model.config`` is the resolved config: defaults filled in, presets written out; it builds
    the same model again. registry: where names are looked up; default all that is installed.

    Raises: ConfigError, UnknownName, Unavailable, Unsupported: one line with the path of the key.
    """
    parsed = read(config, {name: model.config for name, model in _MODELS.items()})
    recipe = _MODELS[parsed.model]
    found = registry if registry is not None else discover()
    plans = [plan(choice, parsed, found) for choice in parsed.attention]
    return recipe.assemble(_Parts(parsed, plans, recipe.parts))


@dataclass(frozen=True)
class _Parts:
    """What models are assembled from: a parsed config and the plans of its attention pattern."""

    config: StackConfig
    plans: list[Plan]
    masked: frozenset[Part]

    def resolved(self) -> dict[str, Any]:
        """The config as plain data, with every default written out."""
        config = self.config
        data = config.model_dump(mode="json")
        entries = [dict(entry.resolved) for entry in self.plans]
        data["attention"] = entries if len(entries) > 1 else entries[0]
        data["kv_heads"] = config.sizes.kv_heads
        data["feed_forward"]["width"] = self._width()
        if config.position.kind in ("rope", "sinusoidal"):
            data["position"]["base"] = self._base()
        return data

    def embedding(self, vocab_size: int | None) -> TokenEmbedding:
        config = self.config
        make = _EMBEDDED.get(config.position.kind)
        position = make(self) if make else None
        return TokenEmbedding(vocab_size, config.d_model, position=position, dropout=config.dropout)

    def blocks(self) -> list[Block]:
        return [self._block(layer) for layer in range(self.config.layers)]

    def last_norm(self) -> nn.Module | None:
        """Blocks that normalise what they read leave their sum as it is."""
        norm = self.config.norm
        return NORMS[norm.kind](self.config.d_model) if norm.place == "pre" else None

    def sinusoidal(self) -> Sinusoidal:
        return Sinusoidal(self.config.d_model, base=self._base())

    def learned(self) -> Learned:
        assert self.config.max_length is not None
        return Learned(self.config.max_length, self.config.d_model)

    def rotary(self) -> Rotary:
        return Rotary(self.config.sizes.head_dim, base=self._base())

    def alibi(self) -> Alibi:
        return Alibi(self.config.heads)

    def _block(self, layer: int) -> Block:
        config = self.config
        kind = config.position.kind
        position = _IN_HEADS[kind](self) if kind in _IN_HEADS else None
        alibi: frozenset[Part] = frozenset({"alibi"} if isinstance(position, Alibi) else ())
        mixer = MultiHeadAttention(
            config.d_model,
            config.heads,
            self.plans[layer % len(self.plans)].build(self.masked | alibi),
            kv_heads=config.kv_heads,
            position=position,
            head_norm=NORMS.get(config.query_key_norm),
        )
        make = FEED_FORWARDS[config.feed_forward.kind]
        return Block(mixer, make(config.d_model, self._width(), config.dropout), self._residual)

    def _residual(self) -> Residual:
        norm = self.config.norm
        return RESIDUALS[norm.place](NORMS[norm.kind](self.config.d_model), self.config.dropout)

    def _width(self) -> int:
        given = self.config.feed_forward
        if given.width is not None:
            return given.width
        # Three matrices of two thirds the width cost what two of the whole do.
        thirds = 8 if given.kind == "swiglu" else 12
        return 8 * -(-self.config.d_model * thirds // 24)

    def _base(self) -> float:
        return self.config.position.base or _BASE


_EMBEDDED: Mapping[str, Callable[[_Parts], Sinusoidal | Learned]] = MappingProxyType(
    {"sinusoidal": _Parts.sinusoidal, "learned": _Parts.learned}
)
_IN_HEADS: Mapping[str, Callable[[_Parts], HeadPosition]] = MappingProxyType(
    {"rope": _Parts.rotary, "alibi": _Parts.alibi}
)


def _encoder(parts: _Parts) -> Encoder:
    config = parts.config
    assert isinstance(config, EncoderConfig)
    return Encoder(
        parts.embedding(config.vocab_size),
        parts.blocks(),
        parts.last_norm(),
        max_length=config.max_length,
        config=parts.resolved(),
    )


def _causal_lm(parts: _Parts) -> CausalLM:
    config = parts.config
    assert isinstance(config, CausalLMConfig)
    return CausalLM(
        parts.embedding(config.vocab_size),
        parts.blocks(),
        parts.last_norm(),
        vocab_size=config.vocab_size,
        max_length=config.max_length,
        config=parts.resolved(),
    )


@dataclass(frozen=True)
class _Recipe:
    """A model that configs can name. parts: what it adds to the mask of every call."""

    config: type[StackConfig]
    assemble: Callable[[_Parts], SequenceModel]
    parts: frozenset[Part] = frozenset()


_MODELS: Mapping[str, _Recipe] = MappingProxyType(
    {
        "encoder": _Recipe(EncoderConfig, _encoder),
        "causal_lm": _Recipe(CausalLMConfig, _causal_lm, frozenset({"causal"})),
    }
)
