"""The contract: what an author of a variant writes, and what everybody may call.

An author of a sequence variant declares ``capabilities`` and writes ``attend`` and ``reference``
(or ``pattern``). Sizes: B batch, H heads, Hkv key heads, L queries, S keys, D head width, Dv value
width, C channels. Projections, positions and residuals lie outside.

Grouped heads (Hkv < H) mean ``repeat_interleave``: query head h reads key head h // (H // Hkv).
What a variant holds for each head, such as a decay, it holds for each query head.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Self

import pydantic
import torch
from torch import Tensor, nn

from polyattn.admission import (
    FULL,
    NO_INPUTS,
    Admission,
    Asked,
    Inputs,
    has_tangent,
    nothing,
)
from polyattn.capabilities import (
    Call,
    Capabilities,
    FeatureMapCapabilities,
    InputSize,
    Refusal,
    Sizes,
    refuse_device,
)
from polyattn.checked import check_feature_map, check_tensors, need_tensors
from polyattn.errors import ConfigError, Unsupported
from polyattn.mask import Mask, as_mask
from polyattn.options import Options
from polyattn.state import KeyValueState, Origin, State

__all__ = ["FeatureMapAttention", "Inputs", "SequenceAttention"]


def config_of(label: str, made_of: type[Options], config: object) -> Options:
    """The config, or the default one for None. Raises: ConfigError for what is none."""
    if config is None:
        return made_of()
    if not isinstance(config, Options):
        raise ConfigError(
            f"{label}: expected its config as a polyattn.Options, got a {type(config).__name__}; "
            f"such as {made_of.__qualname__}(...)"
        )
    return config


def not_sizes(given: object) -> str:
    """What to say of a head geometry that is no ``Sizes``."""
    return (
        f"sizes: expected polyattn.Sizes(heads=..., head_dim=...), got a {type(given).__name__}"
        f"{'; use polyattn.Sizes(**sizes)' if isinstance(given, Mapping) else ''}"
    )


def _shown(config: Options) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in config)


class SequenceAttention(Admission):
    """Base class of every variant over sequences: ``variant(q, k, v, mask, inputs)``.

    config: its options; None takes the defaults. sizes: the head geometry, needed by variants
    with parameters of their own.
    Raises: ConfigError where sizes are needed and missing; Unsupported for what it cannot do.
    """

    capabilities: ClassVar[Capabilities]
    side_inputs: ClassVar[Mapping[str, InputSize]] = {}

    class Config(Options):
        """``scale``: factor of the logits, default 1/sqrt(D). ``dropout``: on the attention
        weights, in training only."""

        scale: float | None = pydantic.Field(default=None, gt=0)
        dropout: float = pydantic.Field(default=0.0, ge=0, lt=1)

    config: Any

    def __init__(self, config: Options | None = None, sizes: Sizes | None = None) -> None:
        super().__init__()
        taken = sorted({"q", "k", "v"} & set(self.side_inputs))
        if taken:
            raise ConfigError(f"{self.label}: side inputs may not be called {taken}; rename them")
        self.config = config_of(self.label, type(self).Config, config)
        if sizes is not None and not isinstance(sizes, Sizes):
            raise ConfigError(f"{self.label}: {not_sizes(sizes)}")
        self.sizes = sizes
        self.claims = type(self).capabilities_for(self.config)
        self._owner = f"{self.label}({self.config})"
        self._scale: float | None = getattr(self.config, "scale", None)
        self._dropout: float = getattr(self.config, "dropout", 0.0)
        self.refuses_by_length = (
            type(self).refuse_lengths is not SequenceAttention.refuse_lengths
            or not self.claims.lengths.any
            or not self.claims.unequal_lengths
        )
        refusals = self.refusals(Call(sizes=sizes, dropout=self._dropout))
        if refusals:
            raise Unsupported(self.label, refusals)
        self.build()

    # What an author writes

    def build(self) -> None:
        """Make parameters and buffers, from ``self.require_sizes()`` and ``self.config``."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        """The attention: q (B, H, L, D), k (B, H, S, D), v (B, H, S, Dv) -> (B, H, L, Dv).

        The call is checked and none of B, L, S is zero. k and v have Hkv heads where the
        variant claims grouped heads natively. A row that the mask empties gives zeros, with zero
        gradients (``kit.masked_softmax``, ``kit.safe_divide``).
        """
        raise NotImplementedError(f"{self.label} writes no attend")

    def pattern(self, queries: int, keys: int, *, device: torch.device) -> Tensor | None:
        """What the variant itself lets be seen: bool (L, S) or (H, L, S), or None for all.

        The queries are the last L of S. What may be seen is the pattern and the mask.
        """
        return None

    def reference(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        """The definition, slow and plain, of what ``attend`` receives, sharing no code with it.

        This one is softmax restricted to ``pattern``; other kernels write their own.
        """
        batch, heads, queries, keys = *q.shape[:3], k.shape[2]
        k, v = (x.repeat_interleave(heads // x.shape[1], dim=1) for x in (k, v))
        logits = self.scale_for(q.shape[-1]) * torch.einsum("bhld,bhsd->bhls", q, k)
        bias = mask.logit_bias(queries, keys, dtype=logits.dtype, device=q.device)
        logits = logits if bias is None else logits + bias
        visible = torch.ones_like(logits, dtype=torch.bool)
        for keep in (
            mask.keep(queries, keys, batch, heads, q.device),
            self.pattern(queries, keys, device=q.device),
        ):
            visible = visible if keep is None else visible & keep
        # The exponential of a closed logit is never formed: its gradient could be inf * 0.
        level = torch.where(visible, logits, -torch.inf).detach().amax(-1, keepdim=True)
        odds = torch.where(visible, logits - level, 0.0).exp() * visible
        total = odds.sum(-1, keepdim=True)
        return torch.einsum("bhls,bhsv->bhlv", odds / torch.where(total > 0, total, 1.0), v)

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, state: Any, mask: Mask, inputs: Inputs
    ) -> tuple[Tensor, State]:
        """Answer L new tokens, given what the state remembers. k, v: (B, Hkv, L, width).

        This one attends over all keys that a key-value state holds.
        """
        held, over_all, state = state.append({**inputs, "k": k, "v": v}, mask, q)
        keys, values = held.pop("k"), held.pop("v")
        extent = check_tensors(q, keys, values)
        return self._answer(Asked(q, keys, values, over_all, held, extent)), state

    def refuse(self, call: Call) -> Iterable[Refusal]:
        """Refusals beyond the claims: conditions and pairs. A field that is None is not judged.

        Asked before ``build`` as well: reads config, sizes and claims only.
        """
        return ()

    def refuse_lengths(
        self, queries: int, keys: int, window: tuple[int | None, int | None] | None
    ) -> Iterable[Refusal]:
        """Refusals by length. Asked on every call, where all others are remembered."""
        return self.claims.refuse_lengths(queries, keys, self.sizes)

    @classmethod
    def capabilities_for(cls, config: Any) -> Capabilities:
        """The claims under these options, where options change them."""
        return cls.capabilities

    @classmethod
    def examples(cls) -> tuple[Any, ...]:
        """At least one valid config; the suite, the benchmarks and the docs use them."""
        return (cls.Config(),)

    @classmethod
    def at_limit(cls, config: Any, sizes: Sizes, keys: int) -> tuple[Self, float] | None:
        """This approximation where it is exact softmax over ``keys`` keys, under no further mask.

        config: what the limit does not settle is taken from it.
        Returns: it, built and its parameters set, and the error that is left, as a share of the
        largest value (0: roundings only); None where no finite size is its limit.
        """
        return None

    # What an author may use

    def extra_repr(self) -> str:
        """The options, as ``repr`` of the module shows them."""
        return _shown(self.config)

    def require_sizes(self) -> Sizes:
        """The sizes. Raises: ConfigError where none were given."""
        if self.sizes is None:
            raise ConfigError(
                f"{self.label} needs the head geometry here: expected "
                "sizes=polyattn.Sizes(heads=..., head_dim=...), got none"
            )
        return self.sizes

    def scale_for(self, head_dim: int) -> float:
        """The factor of the logits."""
        return 1 / math.sqrt(head_dim) if self._scale is None else self._scale

    @property
    def dropout_p(self) -> float:
        """The dropout in force: the configured one in training, else zero."""
        return self._dropout if self.training else 0.0

    # What everybody calls

    def refusals(self, call: Call) -> tuple[Refusal, ...]:
        """Every reason why this call would not be answered; empty if it would be."""
        found = super().refusals(call)
        if not call.cross or type(self).pattern is SequenceAttention.pattern:
            return found
        way_out = "use a variant without a pattern, such as sdpa, between unrelated sequences"
        return (Refusal("cross", "keys of another sequence", "one sequence", way_out), *found)

    def expected(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Mask | None = None,
        inputs: Inputs = NO_INPUTS,
    ) -> Tensor:
        """``forward`` by the definition: the same checks, then ``reference``."""
        return self._checked(q, k, v, as_mask(mask), inputs, True)

    def new_state(
        self,
        batch: int,
        sizes: Sizes | None = None,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> State:
        """An empty decoding state. Raises: Unsupported where the variant cannot decode."""
        if type(batch) is not int or batch < 0:
            raise ConfigError(f"{self.label}: batch = {batch!r}: expected an integer >= 0")
        if sizes is not None and not isinstance(sizes, Sizes):
            raise ConfigError(f"{self.label}: {not_sizes(sizes)}")
        place = torch.device(device)
        sizes = sizes or self.sizes
        self.candidates(Call(device=place.type, dtype=dtype, batch=batch, sizes=sizes, state=True))
        state = self.start(batch, sizes, dtype=dtype, device=place)
        return state.made_for(Origin(self._owner, batch, sizes, dtype, place.type))

    def start(
        self, batch: int, sizes: Sizes | None, *, dtype: torch.dtype, device: torch.device
    ) -> State:
        """The state before the first token; authors of other kinds of state override this."""
        return KeyValueState()

    def extend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        state: State,
        mask: Mask | None = None,
        inputs: Inputs = NO_INPUTS,
    ) -> tuple[Tensor, State]:
        """Attention of L new tokens over themselves and what the state remembers, causally.

        mask: of the new tokens only: padding, segments, window, alibi.
        Returns: (B, H, L, Dv) and the state afterwards; the given state stays as it was.
        """
        mask = FULL if mask is None else as_mask(mask)
        if not self._fitting_chunk(q, k, v, state, mask, inputs):
            return nothing(q, k, v), state
        if torch.is_grad_enabled():
            state = state.recordable()
        return self.step(q, k, v, state, mask, inputs)


class FeatureMapAttention(nn.Module):
    """Base class of every variant over feature maps: x (B, C, *spatial) -> the same shape.

    config: its options; None takes the defaults. channels: C.
    Pixels that ``keep`` closes count for nothing: the output elsewhere does not depend on them,
    and has no gradient to them. What the output holds at such a pixel is not said and not judged.
    """

    capabilities: ClassVar[FeatureMapCapabilities]

    class Config(Options):
        """No options by default."""

    config: Any

    def __init__(self, config: Options | None = None, channels: int | None = None) -> None:
        super().__init__()
        self.config = config_of(self.label, type(self).Config, config)
        if channels is not None and (type(channels) is not int or channels < 1):
            raise ConfigError(f"{self.label}: channels = {channels!r}: expected an integer >= 1")
        self.channels = channels
        self.claims = type(self).capabilities_for(self.config)
        self.build()

    def build(self) -> None:
        """Make parameters and buffers, from ``self.require_channels()`` and ``self.config``."""

    def attend(self, x: Tensor, keep: Tensor | None) -> Tensor:
        """The attention of a checked x (B, C, *spatial), none of whose sizes is zero.

        keep: bool (B, *spatial), True = a real pixel, or None if all are.
        """
        raise NotImplementedError(f"{self.label} writes no attend")

    def reference(self, x: Tensor, keep: Tensor | None) -> Tensor:
        """The definition, slow and plain, sharing no code with ``attend``."""
        raise NotImplementedError(f"{self.label} writes no reference")

    def refuse(self, call: Call) -> Iterable[Refusal]:
        """Refusals beyond the claims. A field that is None is not judged."""
        return ()

    @classmethod
    def capabilities_for(cls, config: Any) -> FeatureMapCapabilities:
        """The claims under these options, where options change them."""
        return cls.capabilities

    @classmethod
    def examples(cls) -> tuple[Any, ...]:
        """At least one valid config."""
        return (cls.Config(),)

    def extra_repr(self) -> str:
        """The options, as ``repr`` of the module shows them."""
        return _shown(self.config)

    @property
    def label(self) -> str:
        """What error messages call it."""
        return type(self).__name__

    def require_channels(self) -> int:
        """The channels. Raises: ConfigError where none were given."""
        if self.channels is None:
            raise ConfigError(f"{self.label} has parameters: expected channels=..., got none")
        return self.channels

    def refusals(self, call: Call) -> tuple[Refusal, ...]:
        """Every reason why this call would not be answered; empty if it would be."""
        return (*refuse_device(self.claims.devices, call), *self.refuse(call))

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        """Attention over x (B, C, *spatial); keep: bool (B, *spatial), True = a real pixel.

        Returns: the shape, dtype and memory format of x. Raises: ShapeError, Unsupported.
        """
        self._check(x, keep)
        return self.attend(x, keep) if x.numel() else x.clone()

    def expected(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        """``forward`` by the definition: the same checks, then ``reference``."""
        self._check(x, keep)
        return self.reference(x, keep) if x.numel() else x.clone()

    def _check(self, x: Tensor, keep: Tensor | None) -> None:
        check_feature_map(self.label, x, keep, self.channels, self.claims.spatial_dims)
        try:
            grad = torch.is_grad_enabled() and x.requires_grad
            place, tangent = x.device.type, has_tangent(x)
            call = Call(device=place, dtype=x.dtype, grad=grad, forward_ad=tangent)
        except AttributeError:
            need_tensors(x=x)
            raise
        refusals = self.refusals(call)
        if keep is not None and not self.claims.keep:
            way_out = "crop the padding or choose another variant"
            refusals += (Refusal("keep", "a mask of pixels", "whole maps only", way_out),)
        if refusals:
            raise Unsupported(self.label, refusals)
