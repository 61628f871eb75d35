"""What a variant claims, what a call asks for, and the refusals in between.

Capabilities are data on the class, readable without building it. A *call claim* is something that
a call can ask for: declared, the suite proves it; not declared, using it raises ``Unsupported``,
and the suite proves that too. A *property claim* describes the result: declared, the suite proves
it; not declared, it is reported as not claimed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Literal, get_args

import torch

from polyattn.errors import ConfigError

Part = Literal["causal", "window", "padding", "segments", "dense", "bias", "alibi"]
PARTS: frozenset[Part] = frozenset(get_args(Part))
"""Every part a mask can have."""

ORDERED_PARTS: tuple[Part, ...] = get_args(Part)
"""The same in one order: that of a set differs from one process to the next."""

FLOATS = frozenset({torch.float64, torch.float32, torch.bfloat16, torch.float16})
"""Every dtype that a variant written in plain torch operations usually takes."""


@dataclass(frozen=True)
class Sizes:
    """The head geometry a variant is built for. Never mixed with its options.

    heads: H, query heads. head_dim: D, width of a query and of a key.
    kv_heads: Hkv, heads of keys and values; divides H (default H).
    value_dim: Dv, width of a value (default D).
    max_length: the longest S the variant must serve, for those that index by position.

    Raises: ConfigError for anything that is not a positive integer or does not divide.
    """

    heads: int
    head_dim: int
    # None stands for the default until it is known: afterwards these are integers.
    kv_heads: int = None  # type: ignore[assignment]
    value_dim: int = None  # type: ignore[assignment]
    max_length: int | None = None

    def __post_init__(self) -> None:
        for name, default in (("kv_heads", self.heads), ("value_dim", self.head_dim)):
            if getattr(self, name) is None:
                object.__setattr__(self, name, default)
        for name in ("heads", "head_dim", "kv_heads", "value_dim", "max_length"):
            value = getattr(self, name)
            if name == "max_length" and value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigError(f"Sizes.{name} = {value!r}: expected a positive integer")
        if self.heads % self.kv_heads:
            raise ConfigError(
                f"Sizes.kv_heads = {self.kv_heads}: expected a divisor of heads = {self.heads}, "
                "since each key head serves the same number of query heads"
            )


@dataclass(frozen=True)
class InputSize:
    """The shape of one side input: ``(B, heads, S, width)``, given like keys.

    heads: which head count it has. width: a size by name, or a fixed number.
    """

    heads: Literal["heads", "kv_heads"]
    width: Literal["head_dim", "value_dim"] | int

    def resolve(self, sizes: Sizes) -> tuple[int, int]:
        """(head count, width) for these sizes."""
        width = self.width if isinstance(self.width, int) else getattr(sizes, self.width)
        return getattr(sizes, self.heads), width


@dataclass(frozen=True, kw_only=True)
class Support:
    """What a variant does on one kind of device; ``forward_ad``: forward-mode derivatives."""

    dtypes: Set[torch.dtype] = FLOATS
    backward: bool = True
    double_backward: bool = False
    forward_ad: bool = False


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """Which key lengths S a variant takes. ``up_to="max_length"`` reads ``Sizes.max_length``."""

    multiple_of: int = 1
    at_least: int = 0
    up_to: int | Literal["max_length"] | None = None

    @property
    def any(self) -> bool:
        return self.multiple_of == 1 and self.at_least == 0 and self.up_to is None


EVERYWHERE: Mapping[str, Support] = {"cpu": Support(), "cuda": Support()}


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """The claims of a sequence variant.

    masks: the mask parts it takes. requires: parts that every call must have; "causal" there
    makes a variant causal or nothing.
    unequal_lengths: L != S. value_width: Dv != D. dropout: on the attention weights.
    grouped_heads: "native" takes Hkv < H itself, "repeated" has the base class repeat, "no".
    state: the kind of decoding state. lengths: the rule for S.
    exactness: "exact" softmax (of its pattern), its "own kernel", or "approximate", with the
    ``limit`` in which it is exact: ``SequenceAttention.at_limit`` goes there, unless that takes
    an infinite ``improves_with``: the option of which 64 times as much at least halves the error.
    random_features: drawn when it is built ("fixed"), or at each call in training ("redrawn").
    linear_memory: twice the length takes about twice the memory, gradients included.
    compiles, exports: "no", with "fixed" lengths only, or "dynamic".
    """

    masks: Set[Part] = frozenset()
    requires: Set[Part] = frozenset()
    unequal_lengths: bool = True
    grouped_heads: Literal["native", "repeated", "no"] = "repeated"
    value_width: bool = True
    dropout: bool = False
    state: Literal["none", "key_value", "sliding", "recurrent"] = "none"
    lengths: Lengths = Lengths()
    devices: Mapping[str, Support] = field(default_factory=lambda: dict(EVERYWHERE))
    exactness: Literal["exact", "own kernel", "approximate"] = "exact"
    limit: str = ""
    improves_with: str = ""
    random_features: Literal["no", "fixed", "redrawn"] = "no"
    linear_memory: bool = False
    rows_sum_to_one: bool = False
    linear_in_values: bool = False
    key_order_invariant: bool = False
    nan_blind: bool = False
    compiles: Literal["no", "fixed", "dynamic"] = "no"
    exports: Literal["no", "fixed", "dynamic"] = "no"

    def __post_init__(self) -> None:
        object.__setattr__(self, "masks", frozenset(self.masks) | frozenset(self.requires))
        object.__setattr__(self, "requires", frozenset(self.requires))
        unknown = sorted(self.masks - PARTS)
        if unknown:
            raise ConfigError(
                f"Capabilities.masks = {unknown}: known parts are {list(get_args(Part))}"
            )

    @property
    def causal(self) -> Literal["no", "yes", "required"]:
        if "causal" in self.requires:
            return "required"
        return "yes" if "causal" in self.masks else "no"

    def refusals(self, call: Call) -> Iterator[Refusal]:
        """The generic refusals of a call: what was not claimed. Unknown fields are not judged."""
        yield from refuse_device(self.devices, call)
        if call.parts is not None:
            yield from self._refuse_parts(call.parts)
        if call.sizes is not None:
            yield from self._refuse_sizes(call.sizes)
        if call.dropout and not self.dropout:
            yield Refusal(
                "dropout", call.dropout, "0", "set dropout to 0 or choose another variant"
            )
        if call.state and self.state == "none":
            yield Refusal(
                "state",
                "decoding",
                "whole sequences",
                "call it on the whole sequence or choose a variant with a state",
            )
        if call.cross:
            yield from _refuse_order_across(call.parts or frozenset())

    def refuse_lengths(
        self, queries: int | None, keys: int | None, sizes: Sizes | None
    ) -> Iterator[Refusal]:
        """The length rule alone: it is compared on every call, the rest may be remembered."""
        known = queries is not None and keys is not None
        if known and queries != keys and not self.unequal_lengths:
            yield Refusal(
                "length",
                f"L = {queries}, S = {keys}",
                "L = S",
                "give queries and keys of the same length",
            )
        if keys is None or self.lengths.any:
            return
        rule = self.lengths
        if keys % rule.multiple_of:
            yield Refusal(
                "length",
                keys,
                f"multiples of {rule.multiple_of}",
                "pad the sequence and mask the padding",
            )
        if keys < rule.at_least:
            yield Refusal("length", keys, f"at least {rule.at_least}", "give a longer sequence")
        limit = rule.up_to
        if limit == "max_length":
            limit = sizes.max_length if sizes else None
        if limit is not None and keys > limit:
            yield Refusal(
                "length",
                keys,
                f"up to {limit}",
                f"build the variant with Sizes(max_length={keys}) or shorten the sequence",
            )

    def _refuse_parts(self, parts: frozenset[str]) -> Iterator[Refusal]:
        allowed = ", ".join(p for p in get_args(Part) if p in self.masks) or "no mask at all"
        for part in get_args(Part):
            if part in parts and part not in self.masks:
                yield Refusal(
                    "mask",
                    part,
                    allowed,
                    f"drop the {part} part or choose a variant "
                    "that takes it (polyattn explain lists them)",
                )
            if part in self.requires and part not in parts:
                yield Refusal(
                    "mask",
                    "without " + part,
                    f"masks with a {part} part",
                    f"add Mask.{part}(...) to the mask",
                )

    def _refuse_sizes(self, sizes: Sizes) -> Iterator[Refusal]:
        if sizes.kv_heads != sizes.heads and self.grouped_heads == "no":
            yield Refusal(
                "kv_heads",
                sizes.kv_heads,
                f"{sizes.heads}, one per query head",
                "repeat the key heads or choose another variant",
            )
        if sizes.value_dim != sizes.head_dim and not self.value_width:
            yield Refusal(
                "value_dim",
                sizes.value_dim,
                f"{sizes.head_dim}, the width of the keys",
                "project the values to the width of the keys",
            )


@dataclass(frozen=True, kw_only=True)
class FeatureMapCapabilities:
    """The claims of a feature-map variant.

    spatial_dims: how many spatial dimensions it takes (1, 2, 3). keep: takes a mask of the real
    pixels. gate: if the output is the input times a gate, the closed range of that gate.
    symmetry: "pixels" where a map is a bag of pixels: moved, they move the output with them, and
    each of them repeated as often changes nothing; "translation" where a shifted map gives the
    shifted output six pixels away from the borders.
    pooling: what the gate hears of the pixels, if only their mean, their maximum, or both: of
    each channel; under "translation", of each pixel over the channels as well. A gate that is
    symmetric in the pixels and is made of such sums alone is the same for every pixel.
    batch_independent: a sample alone gives what it gives in a batch.
    """

    spatial_dims: Set[int] = frozenset({1, 2, 3})
    keep: bool = False
    gate: tuple[float, float] | None = None
    symmetry: Literal["pixels", "translation"] | None = None
    pooling: Set[Literal["avg", "max"]] = frozenset()
    batch_independent: bool = True
    devices: Mapping[str, Support] = field(default_factory=lambda: dict(EVERYWHERE))
    compiles: Literal["no", "fixed", "dynamic"] = "no"
    exports: Literal["no", "fixed", "dynamic"] = "no"

    def __post_init__(self) -> None:
        object.__setattr__(self, "pooling", frozenset(self.pooling))
        unknown = sorted(self.pooling - {"avg", "max"})
        if unknown:
            raise ConfigError(f"FeatureMapCapabilities.pooling = {unknown}: expected avg, max")
        if self.symmetry not in (None, "pixels", "translation"):
            raise ConfigError(
                f"FeatureMapCapabilities.symmetry = {self.symmetry!r}: expected None, 'pixels' or "
                "'translation'"
            )
        if self.pooling and self.gate is None:
            raise ConfigError(
                f"FeatureMapCapabilities.pooling = {sorted(self.pooling)}: it speaks of a gate; "
                "claim the range of the gate as well, gate=(low, high)"
            )


@dataclass(frozen=True, kw_only=True)
class Call:
    """What one call asks for. A field that is None is not known yet, and is then not judged: the
    same questions are asked when a model is built and when it runs.

    device: type of the device. queries, keys: L and S. parts: the parts of the mask.
    window: (left, right), the narrowest of the mask. cross: keys from an unrelated sequence.
    dropout: the probability in force. grad: any input requires grad. bias_grad: a bias or the
    slopes do. forward_ad: an input carries a tangent.
    state: decoding step by step.
    """

    device: str | None = None
    dtype: torch.dtype | None = None
    batch: int | None = None
    queries: int | None = None
    keys: int | None = None
    sizes: Sizes | None = None
    parts: frozenset[str] | None = None
    prefix: int | None = None
    window: tuple[int | None, int | None] | None = None
    cross: bool | None = None
    dropout: float | None = None
    grad: bool | None = None
    bias_grad: bool | None = None
    forward_ad: bool | None = None
    state: bool | None = None


@dataclass(frozen=True)
class Refusal:
    """One reason why a call is not answered: option, value, what is allowed, the way out."""

    option: str
    value: object
    allowed: str
    way_out: str

    def __str__(self) -> str:
        return f"{self.option} = {self.value} (takes {self.allowed}): {self.way_out}"


def _refuse_order_across(parts: frozenset[str]) -> Iterator[Refusal]:
    """Between unrelated sequences there is neither order nor distance."""
    for part in ("causal", "window", "alibi"):
        if part in parts:
            yield Refusal(
                "mask",
                f"{part} across sequences",
                "padding, dense, bias, segments with two sets of ids",
                f"drop the {part} part: positions of unrelated sequences do not compare",
            )


def refuse_device(devices: Mapping[str, Support], call: Call) -> Iterator[Refusal]:
    """Refusals by device, dtype and kind of derivative, the same for both kinds of variant."""
    if call.device is None or call.device == "meta":
        return
    support = devices.get(call.device)
    if support is None:
        allowed = " or ".join(devices) or "no device"
        way_out = "move the tensors or choose another variant"
        yield Refusal("device", call.device, allowed, way_out)
        return
    if call.dtype is not None and call.dtype not in support.dtypes:
        names = ", ".join(sorted(str(d).removeprefix("torch.") for d in support.dtypes))
        name = str(call.dtype).removeprefix("torch.")
        yield Refusal("dtype", name, f"{names} on {call.device}", "convert the inputs")
    if call.grad and not support.backward:
        way_out = "detach the inputs or choose another variant"
        yield Refusal("grad", "required", f"no gradients on {call.device}", way_out)
    if call.forward_ad and not support.forward_ad:
        way_out = "use reverse mode, or a variant of plain operations such as dense"
        yield Refusal("forward_ad", "required", "reverse-mode gradients", way_out)
