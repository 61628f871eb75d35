"""The attention of each layer: looked up, parsed, judged and built, with paths in every error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from polyattn.capabilities import Call, Part, Refusal, Sizes
from polyattn.config import Choice, StackConfig
from polyattn.contract import SequenceAttention
from polyattn.errors import ConfigError, PolyattnError, Unsupported
from polyattn.factory import Blueprint, resolve
from polyattn.options import as_data
from polyattn.registry import Registry
from polyattn.spec import PresetSpec

__all__ = ["Plan", "plan"]


@dataclass(frozen=True)
class Plan:
    """One entry of the attention pattern, ready to be built for any layer that repeats it."""

    choice: Choice
    blueprint: Blueprint
    config: StackConfig
    resolved: Mapping[str, Any]
    registry: Registry

    @property
    def label(self) -> str:
        """Where the entry stood and what it named."""
        return f"{self.choice.path} ({self.choice.name})"

    def build(self, parts: frozenset[Part]) -> SequenceAttention:
        """A variant for the sizes of the config. parts: what its model adds to every mask.

        Raises: Unsupported for what cannot work, whatever the call; ConfigError.
        """
        if self.blueprint.kind != "sequence":
            raise ConfigError(
                f"{self.label}: expected a variant over sequences, got one over feature maps; "
                "`polyattn list` shows which is which"
            )
        sizes = self.config.sizes
        try:
            variant = self._judged(sizes, parts)
        except PolyattnError as error:
            refusals = getattr(error, "refusals", ())
            if not refusals and sizes.max_length is None:
                # Asking for a length is no help where the variant could not work with it either.
                refusals = self._refusals(replace(sizes, max_length=1), parts)
            if refusals:
                refusals = (*refusals, *self._rather(parts))
                raise Unsupported(self._blamed(refusals), refusals) from None
            raise _said(error, f"{self.label}: {error}") from None
        return variant

    def _judged(self, sizes: Sizes, parts: frozenset[Part]) -> SequenceAttention:
        """The variant, if it could answer its model. Raises: Unsupported, ConfigError."""
        variant = self.blueprint.build(sizes)
        assert isinstance(variant, SequenceAttention)
        # What a variant requires may still come with the caller's own mask.
        asked = parts if "causal" in parts else parts | variant.claims.requires
        dropout = float(getattr(self.blueprint.config, "dropout", 0.0))
        call = Call(sizes=sizes, parts=asked, cross=False, dropout=dropout)
        refusals = (*self._looking_ahead(parts), *variant.refusals(call))
        if refusals:
            raise Unsupported(self.label, refusals)
        return variant

    def _looking_ahead(self, parts: frozenset[Part]) -> Iterator[Refusal]:
        """A reach ahead says nothing where no token sees what comes after it, and it costs the
        decoding state."""
        right = getattr(self.blueprint.config, "right", None)
        if "causal" in parts and type(right) is int and right > 0:
            way_out = "set right to 0, or use an encoder, whose tokens see both ways"
            yield Refusal("right", right, f"0 in a {self.config.model}", way_out)

    def _rather(self, parts: frozenset[Part]) -> Iterator[Refusal]:
        """Whoever names a member that is not made for this model wants the operation, or a variant
        of nearly that name: said where these would do."""
        name = self.choice.name
        operation = self.registry.operation_of(name)
        near = self.registry.near(name.rpartition(":")[2])
        ways = []
        if operation and self._would_do(operation, self.choice.options, parts):
            ways.append(f"name {operation!r}, which asks each of its members")
        if operation and near and self._would_do(near, {}, parts):
            ways.append(f"name {near!r}")
        if ways:
            value, allowed = f"a member of {operation!r}", "the calls that it is made for"
            yield Refusal(name, value, allowed, ", or ".join(ways))

    def _would_do(self, name: str, options: Mapping[str, Any], parts: frozenset[Part]) -> bool:
        choice = Choice(name=name, options=dict(options), path=self.choice.path)
        try:
            plan(choice, self.config, self.registry)._judged(self.config.sizes, parts)
        except PolyattnError:
            return False
        return True

    def _refusals(self, sizes: Sizes, parts: frozenset[Part]) -> tuple[Refusal, ...]:
        try:
            self._judged(sizes, parts)
        except Unsupported as error:
            return error.refusals
        except PolyattnError:
            # It is unwell for another reason, which the first attempt has told.
            return ()
        return ()

    def _blamed(self, refusals: tuple[Refusal, ...]) -> str:
        """The key that asked for it: what all layers share, or the entry itself."""
        shared = "dropout" not in self.choice.options
        if shared and any(refusal.option.endswith("dropout") for refusal in refusals):
            return f"attention_dropout = {self.config.attention_dropout:g}: {self.label}"
        return self.label


def plan(choice: Choice, config: StackConfig, registry: Registry) -> Plan:
    """The plan of an entry: its name looked up, its options parsed.

    Raises: UnknownName, NameClash, Unavailable, ConfigError, each with the path of the entry.
    """
    options = dict(choice.options)
    try:
        entry = registry.find(choice.name)
        blueprint = resolve(choice.name, options, where=choice.path, registry=registry)
        preset = entry.spec.options if isinstance(entry.spec, PresetSpec) else {}
        if config.attention_dropout and "dropout" not in {**preset, **options}:
            _check_dropout(choice, config, blueprint)
            options["dropout"] = config.attention_dropout
            blueprint = resolve(choice.name, options, where=choice.path, registry=registry)
    except Unsupported:
        raise
    except PolyattnError as error:
        raise _said(error, _located(str(error), choice)) from None
    name = choice.name
    if isinstance(entry.spec, PresetSpec):
        # Written out, so that the model can be built where the preset is not known.
        name = entry.spec.variant
    resolved = {"name": name, **as_data(blueprint.config)}
    return Plan(choice, blueprint, config, resolved, registry)


def _check_dropout(choice: Choice, config: StackConfig, blueprint: Blueprint) -> None:
    """Refuse a dropout for all layers where a variant has no such option."""
    if "dropout" in type(blueprint.config).model_fields:
        return
    way_out = "set attention_dropout to 0 or choose a variant that has it"
    refusal = Refusal("dropout", config.attention_dropout, "0", way_out)
    place = f"attention_dropout = {config.attention_dropout:g}: {choice.path} ({choice.name})"
    raise Unsupported(place, [refusal])


def _said(error: PolyattnError, message: str) -> PolyattnError:
    """An error of the same kind with this message; a ConfigError where its kind, which may be a
    stranger's, does not take a message alone."""
    try:
        again = type(error)(message)
    except Exception:
        return ConfigError(message)
    return again if str(again) == message else ConfigError(message)


def _located(message: str, choice: Choice) -> str:
    """The message with the path first and the name behind the path, each once."""
    if not message.startswith(choice.path):
        return f"{choice.path}: {message}"
    ends = [message.find(mark) for mark in (": ", " = ") if mark in message]
    end = min(ends, default=len(message))
    return f"{message[:end]} ({choice.name}){message[end:]}"
