"""From a name and options to a module, and from a call to the reasons for and against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from polyattn.admission import NO_INPUTS
from polyattn.capabilities import Call, Refusal, Sizes
from polyattn.contract import FeatureMapAttention, Inputs, SequenceAttention, not_sizes
from polyattn.errors import ConfigError, PolyattnError, Unavailable, Unsupported
from polyattn.mask import Mask
from polyattn.operation import Operation
from polyattn.options import Options, parse
from polyattn.registry import Entry, Registry, discover, load_target
from polyattn.spec import OperationSpec, PresetSpec, VariantSpec

__all__ = ["Blueprint", "Explanation", "create", "explain", "resolve", "weights"]

Attention = SequenceAttention | FeatureMapAttention

_BASES: Mapping[str, type[Attention]] = {
    "sequence": SequenceAttention,
    "feature_map": FeatureMapAttention,
}


@dataclass(frozen=True)
class Blueprint:
    """A name whose options are parsed and whose class is imported: ready to be built.

    name: as it was asked for. kind: "sequence" or "feature_map". config: the parsed options.
    """

    name: str
    kind: str
    config: Options
    _cls: type[Attention] | None = field(repr=False)
    _members: Mapping[str, type[SequenceAttention]] = field(repr=False, default_factory=dict)
    _unusable: Mapping[str, str] = field(repr=False, default_factory=dict)

    def build(self, size: Sizes | int | None = None) -> Attention:
        """The module. size: ``Sizes`` of a sequence variant, channels of a feature map."""
        if size is not None and not isinstance(size, Sizes | int):
            raise ConfigError(f"{self.name}: {not_sizes(size)}")
        if self.kind == "feature_map":
            if isinstance(size, Sizes):
                raise ConfigError(f"{self.name} is a feature map: expected channels=..., got sizes")
            return self._cls(self.config, size)  # type: ignore[arg-type, misc]
        if isinstance(size, int):
            raise ConfigError(f"{self.name} is over sequences: expected sizes=..., got channels")
        if self._cls is not None:
            return self._cls(self.config, size)  # type: ignore[arg-type]
        return self._operation(size)

    def _operation(self, size: Sizes | None) -> Operation:
        """The members that can be built; why the others cannot is told with every choice."""
        members = {}
        unusable = dict(self._unusable)
        for name, cls in self._members.items():
            try:
                members[name] = cls(self.config, size)
            except Exception as error:
                # Whatever a member's own code does wrong, the others still serve.
                unusable[name] = str(error) or type(error).__name__
        return Operation(self.name, members, self.config, size, unusable)


def create(
    name: str,
    sizes: Sizes | None = None,
    *,
    channels: int | None = None,
    **options: Any,
) -> Attention:
    """Build a variant, operation or preset by name.

    sizes: head geometry of a sequence variant with parameters; channels: C of a feature map.
    options: those of the variant's Config.
    Raises: UnknownName, NameClash, Unavailable, ConfigError, Unsupported.
    """
    if sizes is not None and channels is not None:
        raise ConfigError(f"{name}: expected sizes or channels, got both")
    return resolve(name, options).build(channels if sizes is None else sizes)


def resolve(
    name: str,
    options: Mapping[str, Any] | None = None,
    *,
    where: str | None = None,
    registry: Registry | None = None,
) -> Blueprint:
    """Look a name up and parse its options, without building anything.

    where: the place in the user's config that error messages name.
    """
    registry = registry or discover()
    entry = registry.find(name)
    given = dict(options or {})
    if isinstance(entry.spec, PresetSpec):
        given = {**entry.spec.options, **given}
        entry = registry.find(entry.spec.variant)
    place = where or name
    if isinstance(entry.spec, OperationSpec):
        config = _config(load_target(entry.spec.config), given, place)
        members, unusable = _member_classes(registry, entry)
        return Blueprint(name, "sequence", config, None, members, unusable)
    if not isinstance(entry.spec, VariantSpec):
        raise ConfigError(f"{name!r} is a preset of a preset; name a variant or an operation")
    cls = _class_of(entry)
    return Blueprint(name, entry.spec.kind, _config(cls.Config, given, place), cls)


@dataclass(frozen=True)
class Explanation:
    """What one name says to a call: ``refusals`` is empty where it answers.

    chosen: for an operation, the member that answers.
    """

    name: str
    refusals: tuple[Refusal, ...]
    chosen: str | None = None
    problem: str = ""


def explain(
    name: str | None = None,
    call: Call | None = None,
    options: Mapping[str, Any] | None = None,
    *,
    registry: Registry | None = None,
) -> tuple[Explanation, ...]:
    """What every variant (or one, or the members of one operation) says to a call.

    options: those of the one that is named.
    A variant that cannot be built or loaded has its ``problem`` in the place of refusals.
    """
    registry = registry or discover()
    call = call or Call()
    options = dict(options or {})
    if name is None and options:
        raise ConfigError(
            f"explain: got the options {sorted(options)}, but no name; name a variant"
        )
    if name is not None:
        entry = registry.find(name)
        if isinstance(entry.spec, OperationSpec):
            names = [name for name, _ in _named_members(registry, entry)]
            explained = tuple(_explained(n, options, call, registry) for n in names)
            return (_operation_row(name, options, call, registry), *explained)
        return (_explained(name, options, call, registry),)
    return tuple(
        _explained(n, {}, call, registry)
        for n, e in registry.variants.items()
        if isinstance(e.spec, VariantSpec) and e.spec.kind == "sequence"
    )


def weights(
    variant: SequenceAttention,
    q: Tensor,
    k: Tensor,
    mask: Mask | None = None,
    inputs: Inputs = NO_INPUTS,
) -> Tensor:
    """The attention map (B, H, L, S) of any variant that is linear in its values.

    It is fed unit vectors as values, as many columns at a time as a value is wide. q: (B, H, L,
    D), k: (B, Hkv, S, D). Raises: Unsupported where linearity is not claimed.
    """
    if not variant.claims.linear_in_values:
        way_out = "choose a variant that claims linear_in_values"
        refusal = Refusal("weights", "an attention map", "outputs only", way_out)
        raise Unsupported(variant.label, [refusal])
    width = variant.sizes.value_dim if variant.sizes else q.shape[-1]
    batch, kv_heads, keys = k.shape[:3]
    columns = []
    for start in range(0, keys, width):
        units = torch.zeros(keys, width, dtype=q.dtype, device=q.device)
        count = min(width, keys - start)
        units[start : start + count, :count] = torch.eye(count, dtype=q.dtype, device=q.device)
        values = units.expand(batch, kv_heads, keys, width)
        columns.append(variant(q, k, values, mask, inputs)[..., :count])
    return torch.cat(columns, dim=-1) if columns else q.new_zeros((*q.shape[:3], 0))


def _config(config_class: Any, options: Mapping[str, Any], where: str) -> Options:
    if not (isinstance(config_class, type) and issubclass(config_class, Options)):
        raise Unavailable(f"{where}: its Config is {config_class!r}, expected a polyattn.Options")
    return parse(config_class, options, where)


def _class_of(entry: Entry) -> type[Attention]:
    spec = entry.spec
    assert isinstance(spec, VariantSpec)
    cls = load_target(spec.target)
    base: type[Attention] = FeatureMapAttention if spec.kind == "feature_map" else SequenceAttention
    if not (isinstance(cls, type) and issubclass(cls, base)):
        raise Unavailable(
            f"{entry.label}: {spec.target} is declared as {spec.kind}, expected a subclass of "
            f"polyattn.{base.__name__}"
        )
    if not hasattr(cls, "capabilities"):
        raise Unavailable(f"{entry.label}: {spec.target} declares no capabilities")
    return cls


def _member_classes(
    registry: Registry, operation: Entry
) -> tuple[dict[str, type[SequenceAttention]], dict[str, str]]:
    """The members' classes in order, and why some could not be loaded: others still serve."""
    classes: dict[str, type[SequenceAttention]] = {}
    unusable: dict[str, str] = {}
    for name, member in _named_members(registry, operation):
        if name in classes:
            unusable[f"{name} of {member.label}"] = "declared twice; the first serves"
            continue
        try:
            classes[name] = _sequence_class(member)
        except Unavailable as error:
            unusable[name] = str(error)
    return classes, unusable


def _named_members(registry: Registry, operation: Entry) -> list[tuple[str, Entry]]:
    """In order: with the distribution in the name where two bring the same one."""
    members = registry.members(operation.full_name)
    bare = [member.name for member in members]
    return [(m.name if bare.count(m.name) == 1 else m.full_name, m) for m in members]


def _sequence_class(entry: Entry) -> type[SequenceAttention]:
    cls = _class_of(entry)
    if not issubclass(cls, SequenceAttention):
        raise Unavailable(f"{entry.label}: a member of an operation must be a sequence variant")
    return cls


def _explained(
    name: str, options: Mapping[str, Any], call: Call, registry: Registry
) -> Explanation:
    try:
        built = resolve(name, options, registry=registry).build(call.sizes)
    except Unsupported as error:
        return Explanation(name, error.refusals)
    except PolyattnError as error:
        return Explanation(name, (), problem=str(error))
    return Explanation(name, built.refusals(call))


def _operation_row(
    name: str, options: Mapping[str, Any], call: Call, registry: Registry
) -> Explanation:
    try:
        operation = resolve(name, options, registry=registry).build(call.sizes)
        assert isinstance(operation, Operation)
        return Explanation(name, (), chosen=operation.choose(call).name)
    except Unsupported as error:
        return Explanation(name, error.refusals)
    except PolyattnError as error:
        return Explanation(name, (), problem=str(error))
