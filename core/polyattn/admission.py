"""Between a call and the variant's own mathematics: is the call one that it claims to answer?

What does not change from call to call is judged once and looked up afterwards; shapes, lengths
and the shapes inside the mask are compared every time. Under ``torch.compile`` all of it runs when
the graph is traced and costs nothing later.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

from torch import Tensor, is_grad_enabled, nn
from torch.autograd import forward_ad
from torch.compiler import is_compiling

from polyattn import kit
from polyattn.capabilities import Call, Capabilities, InputSize, Refusal, Sizes
from polyattn.checked import Extent, check_inputs, check_tensors, need_tensors
from polyattn.errors import ConfigError, ShapeError, Unsupported
from polyattn.mask import Mask, as_mask
from polyattn.state import RecurrentState, State, tracks

Inputs = Mapping[str, Tensor]
NO_INPUTS: Inputs = MappingProxyType({})
FULL = Mask.full()
_REMEMBERED = 512
T = TypeVar("T")


class Asked(NamedTuple):
    """One call, with its sizes read off."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Mask
    inputs: Inputs
    extent: Extent


class Admission(nn.Module):
    """The base of ``SequenceAttention`` that an author need not read."""

    side_inputs: ClassVar[Mapping[str, InputSize]] = {}
    refuses_by_length: bool = False
    sizes: Sizes | None
    claims: Capabilities
    config: Any
    _dropout: float
    _owner: str
    """Whose a decoding state is: variants of one name and config share theirs."""

    def __init__(self) -> None:
        super().__init__()
        self._answers: dict[Hashable, tuple[Admission, ...]] = {}
        self._settled: dict[Hashable, Admission] = {}
        self._steps: dict[Hashable, bool] = {}

    @abstractmethod
    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor: ...

    @abstractmethod
    def reference(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor: ...

    @abstractmethod
    def refuse(self, call: Call) -> Iterable[Refusal]: ...

    @abstractmethod
    def refuse_lengths(
        self, queries: int, keys: int, window: tuple[int | None, int | None] | None
    ) -> Iterable[Refusal]: ...

    @property
    @abstractmethod
    def dropout_p(self) -> float: ...

    @property
    def label(self) -> str:
        """What error messages call it."""
        return type(self).__name__

    def refusals(self, call: Call) -> tuple[Refusal, ...]:
        """Every reason why this call would not be answered; empty if it would be."""
        found = [*self.claims.refusals(call), *self.refuse(call)]
        if call.queries is not None and call.keys is not None:
            found += self.refuse_lengths(call.queries, call.keys, call.window)
        return tuple(found)

    def candidates(self, call: Call) -> tuple[Admission, ...]:
        """Who may answer a call, whatever its lengths. Raises: Unsupported for nobody."""
        refusals = self.refusals(call)
        if refusals:
            raise Unsupported(self.label, refusals)
        return (self,)

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Mask | None = None,
        inputs: Inputs = NO_INPUTS,
    ) -> Tensor:
        """Attention of q (B, H, L, D) over k (B, Hkv, S, D) and v (B, Hkv, S, Dv).

        mask: a ``Mask``; None is the full one. inputs: the side inputs, by name.
        Returns: (B, H, L, Dv) in the dtype of q; without keys, zeros.
        Raises: ShapeError, MaskError, Unsupported (with its refusals).
        """
        # One frame, one look-up: a call of which every size was met before is felt otherwise.
        mask = FULL if mask is None else as_mask(mask)
        if inputs or is_compiling() or forward_ad._current_level >= 0:
            return self._checked(q, k, v, mask, inputs)
        tracked = is_grad_enabled()
        try:
            key = (
                q.shape,
                k.shape,
                v.shape,
                q.dtype,
                k.dtype,
                v.dtype,
                q.device,
                k.device,
                v.device,
                tracked and (q.requires_grad or k.requires_grad or v.requires_grad),
                self.training,
                None if mask is FULL else (mask.signature, tracked),
            )
        except AttributeError:
            need_tensors(q=q, k=k, v=v)
            raise
        settled = self._settled.get(key)
        if settled is not None:
            if mask is not FULL:
                mask.check(q.shape[0], q.shape[1], q.shape[2], k.shape[2], q.device)
            return settled.attend(q, k, v, mask, inputs)
        out = self._checked(q, k, v, mask, inputs)
        if q.shape[1] == k.shape[1] and out.numel() and k.shape[2]:
            chosen = self._choose(Asked(q, k, v, mask, inputs, check_tensors(q, k, v)))
            _remember(self._settled, key, chosen)
        return out

    def __getstate__(self) -> dict[str, object]:
        """Copies judge for themselves: what is remembered names this module, with its weights."""
        return {**self.__dict__, "_answers": {}, "_settled": {}, "_steps": {}}

    def _replicate_for_data_parallel(self) -> Self:
        replica: Self = super()._replicate_for_data_parallel()  # type: ignore[no-untyped-call]
        replica._answers, replica._settled, replica._steps = {}, {}, {}
        return replica

    def _checked(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Mask,
        inputs: Inputs,
        by_definition: bool = False,
    ) -> Tensor:
        """Check a call and answer it."""
        return self._answer(self._fitting(q, k, v, mask, inputs), by_definition)

    def _fitting(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Asked:
        """The call, once its tensors are seen to fit each other."""
        extent = check_tensors(q, k, v)
        if mask is not FULL:
            mask.check(*extent[:4], q.device)
        if self.side_inputs or inputs:
            check_inputs(self.label, self.side_inputs, inputs, q, k, v)
        return Asked(q, k, v, mask, inputs, extent)

    def _answer(self, asked: Asked, by_definition: bool = False) -> Tensor:
        """Find who answers, settle what shapes alone decide, and have it answered."""
        chosen = self._choose(asked)
        q, k, v, mask, inputs, (batch, heads, queries, keys, (_, kv_heads, _)) = asked
        if not (batch and queries and keys):
            return nothing(q, k, v)
        if heads != kv_heads and chosen.claims.grouped_heads != "native":
            k, v = kit.repeat_heads(k, heads), kit.repeat_heads(v, heads)
            inputs = {name: kit.repeat_heads(x, heads) for name, x in inputs.items()}
        if by_definition:
            return chosen.reference(q, k, v, mask, inputs)
        return chosen.attend(q, k, v, mask, inputs)

    def _choose(self, asked: Asked) -> Admission:
        _, _, queries, keys, _ = asked.extent
        for candidate in self._known(asked, state=False):
            if not candidate.refuses_by_length or not tuple(
                candidate.refuse_lengths(queries, keys, asked.mask.span)
            ):
                return candidate
        raise Unsupported(self.label, self.refusals(self._call(asked, state=False, lengths=True)))

    def _known(self, asked: Asked, *, state: bool) -> tuple[Admission, ...]:
        """The candidates for calls like this one, judged when first met."""
        if is_compiling():
            return self._judge(asked, state)
        q, k, v, mask, inputs, extent = asked
        tracked = is_grad_enabled()
        try:
            key = (
                extent[1],
                extent[4],
                q.dtype,
                q.device,
                tracked,
                q.requires_grad or k.requires_grad or v.requires_grad,
                any(x.requires_grad for x in inputs.values()),
                self.training,
                state,
                mask.signature,
                has_tangent(q, k, v, *inputs.values()),
            )
        except AttributeError:
            # Arrays of another library have shapes and dtypes as well.
            need_tensors(q=q, k=k, v=v, **inputs)
            raise
        known = self._answers.get(key)
        if known is None:
            known = self._judge(asked, state)
            _remember(self._answers, key, known)
        return known

    def _judge(self, asked: Asked, state: bool) -> tuple[Admission, ...]:
        call = self._call(asked, state=state)
        if self.sizes is not None and self.sizes != call.sizes:
            raise ShapeError(f"{self.label}: built for {self.sizes}, got tensors of {call.sizes}")
        unsaid = tuple(refuse_in_steps(asked.mask)) if state else ()
        if unsaid:
            raise Unsupported(self.label, unsaid)
        return self.candidates(call)

    def _call(self, asked: Asked, *, state: bool, lengths: bool = False) -> Call:
        q, k, v, mask, inputs, extent = asked
        _, heads, queries, keys, (head_dim, kv_heads, value_dim) = extent
        longest = self.sizes.max_length if self.sizes else None
        biases = mask.biases if mask.slopes is None else (*mask.biases, mask.slopes)
        return Call(
            device=q.device.type,
            dtype=q.dtype,
            queries=queries if lengths else None,
            keys=keys if lengths else None,
            sizes=Sizes(heads, head_dim, kv_heads, value_dim, longest),
            parts=mask.parts | {"causal"} if state else mask.parts,
            prefix=mask.prefix,
            window=mask.span,
            dropout=self.dropout_p,
            grad=tracks(q, k, v, *inputs.values()),
            bias_grad=tracks(*biases),
            forward_ad=has_tangent(q, k, v, *inputs.values(), *biases),
            state=state,
        )

    def _fitting_chunk(
        self, q: Tensor, k: Tensor, v: Tensor, state: State, mask: Mask, inputs: Inputs
    ) -> bool:
        """Check the new tokens of a decoding step; False if there are none to answer."""
        if not isinstance(state, State):
            raise ConfigError(
                f"extend: expected a state from {self.label}.new_state, got {type(state).__name__}"
            )
        known = None
        if not (inputs or mask is not FULL or is_compiling() or forward_ad._current_level >= 0):
            # Every step of a decoding looks like the one before: one look-up then says enough.
            try:
                known = (
                    q.shape,
                    k.shape,
                    v.shape,
                    q.dtype,
                    k.dtype,
                    v.dtype,
                    q.device,
                    k.device,
                    v.device,
                    is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad),
                    self.training,
                )
            except AttributeError:
                need_tensors(q=q, k=k, v=v)
                raise
        if known is None or known not in self._steps:
            self._check_chunk(q, k, v, mask, inputs)
            if known is not None:
                _remember(self._steps, known, True)
        if isinstance(state, RecurrentState) != (self.claims.state == "recurrent"):
            raise ConfigError(
                f"extend: {type(state).__name__} is the state of another variant; expected one "
                f"from {self.label}.new_state"
            )
        state.check(self._owner, q, k, v)
        return bool(q.shape[0] and q.shape[2])

    def _check_chunk(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> None:
        asked = self._fitting(q, k, v, mask, inputs)
        _, _, queries, keys, _ = asked.extent
        if queries != keys:
            raise ShapeError(
                f"extend: expected as many new keys as new queries, got L = {queries} and "
                f"S = {keys}; keys of another sequence are attended to by forward"
            )
        self._known(asked, state=True)


def has_tangent(*tensors: Tensor) -> bool:
    """Is forward-mode differentiation under way through any of these?"""
    if is_compiling() or forward_ad._current_level < 0:
        return False
    duals = (forward_ad.unpack_dual(x) for x in tensors)  # type: ignore[no-untyped-call]
    return any(dual.tangent is not None for dual in duals)


def _remember(known: dict[Hashable, T], key: Hashable, value: T) -> None:
    """Keep what was judged; forget all of it rather than grow without bound."""
    if len(known) >= _REMEMBERED:
        known.clear()
    known[key] = value


def refuse_in_steps(mask: Mask) -> Iterable[Refusal]:
    """What a mask of the new tokens cannot say, since it speaks of old keys too."""
    allowed, way_out = "padding, segments, window, alibi", "call forward on the whole sequence"
    for part in ("dense", "bias"):
        if part in mask.parts:
            yield Refusal("mask", f"{part} while decoding", allowed, way_out)
    if mask.prefix:
        yield Refusal("mask", "causal prefix while decoding", allowed, way_out)
    if mask.query_ids is not None:
        way_out = "give one set: Mask.segments(ids)"
        yield Refusal("mask", "segments with two sets of ids while decoding", allowed, way_out)


def nothing(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Zeros (B, H, L, Dv) that depend on the inputs, so that their gradients are zeros too."""
    zeros = q.new_zeros((*q.shape[:3], v.shape[3]))
    return zeros + q[..., :0].sum() + k[..., :0].sum() + v[..., :0].sum()
