"""Multi-head attention around any sequence variant.

It owns what lies outside of a variant: projections, head splitting, query-key normalisation,
positions. Letters: B batch, L queries, S keys, E model width, H heads, Hkv key-value heads,
D head width (E / H).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.nn import functional as F

from polyattn.capabilities import Call, Refusal
from polyattn.contract import SequenceAttention
from polyattn.errors import ConfigError, ShapeError, Unsupported
from polyattn.layers.heads import head_sizes, variant_for
from polyattn.layers.memory import AttentionState, Memory
from polyattn.layers.norms import Norm
from polyattn.layers.positions import Count, HeadPosition
from polyattn.mask import Mask, as_mask
from polyattn.state import State

__all__ = ["MultiHeadAttention"]

_NO_SIDES: Mapping[str, Tensor] = MappingProxyType({})


class MultiHeadAttention(nn.Module):
    """Projects x, attends with a variant, projects back: (B, L, E) -> (B, L, E).

    d_model: E. heads: H, divides E. attention: a variant or an operation, by name or built.
    kv_heads: Hkv, divides H (default H). position: a part that acts on the heads, such as
    `Rotary` or `Alibi`. head_norm: normalises each query and key head before that, for example
    ``NORMS["rmsnorm"]`` (Henry et al., arXiv 2010.04245). bias: of the projections.

    Dropout on the attention is the variant's own: ``create(name, dropout=0.1)``. Parameters carry
    the names and the layout of ``nn.MultiheadAttention``, whose state dict it opens (and the other
    way round) where the variant has no parameters and Hkv = H. Each side input of the variant is
    one more projection, kept apart so that the rest of a checkpoint fits any variant.
    """

    in_proj_bias: nn.Parameter | None

    def __init__(
        self,
        d_model: int,
        heads: int,
        attention: str | SequenceAttention,
        *,
        kv_heads: int | None = None,
        position: HeadPosition | None = None,
        head_norm: Norm | None = None,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.sizes = head_sizes(d_model, heads, kv_heads)
        self.d_model = d_model
        self.attention = variant_for(attention, self.sizes)
        self.position = position
        width = self.sizes.head_dim
        self._split = [heads, self.sizes.kv_heads, self.sizes.kv_heads]
        rows = sum(self._split) * width
        self.in_proj_weight = nn.Parameter(torch.empty(rows, d_model))
        self.in_proj_bias = nn.Parameter(torch.empty(rows)) if bias else None
        self.out_proj = nn.Linear(heads * width, d_model, bias=bias)
        self.query_norm = head_norm(width) if head_norm else None
        self.key_norm = head_norm(width) if head_norm else None
        self.side = nn.ModuleDict()
        for name, size in self.attention.side_inputs.items():
            side_heads, side_width = size.resolve(self.sizes)
            self.side[name] = nn.Linear(d_model, side_heads * side_width, bias=bias)
        self._judged: dict[tuple[SequenceAttention, frozenset[str], bool], tuple[Refusal, ...]] = {}
        self._has_sides = bool(self.attention.side_inputs)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the projections anew, as ``nn.MultiheadAttention`` does."""
        nn.init.xavier_uniform_(self.in_proj_weight)
        if self.in_proj_bias is not None:
            nn.init.zeros_(self.in_proj_bias)
            nn.init.zeros_(self.out_proj.bias)

    def forward(
        self,
        x: Tensor,
        context: Tensor | Memory | None = None,
        mask: Mask | None = None,
        positions: Tensor | None = None,
        state: State | None = None,
    ) -> tuple[Tensor, State | None]:
        """x (B, L, E) -> (B, L, E), and the state after it (None where none was given).

        context: another sequence to attend to, (B, S, E), or what `remember` made of it; without
        it x attends to itself. mask: who may attend to whom; with a state it speaks of the new
        tokens only. positions: integer (L,) or (B, L) for the position part; without them they
        are counted from the mask and the state.

        Raises: ShapeError, MaskError; Unsupported where the variant does not claim the call.
        """
        self._check(x)
        if context is not None:
            return self._across(x, context, mask, state), None
        q, k, v = self._heads(x, self.in_proj_weight, self.in_proj_bias, self._split)
        inputs = self._sides(x) if self._has_sides else _NO_SIDES
        if self.query_norm is not None and self.key_norm is not None:
            # Under autocast a norm answers in float32, beside values that are half.
            q, k = self.query_norm(q).to(v.dtype), self.key_norm(k).to(v.dtype)
        count = Count()
        if self.position is not None:
            q, k, mask, count = self._place(q, k, mask, positions, state)
        if state is None:
            return self._merge(self.attention(q, k, v, mask, inputs)), None
        out, inner = self.attention.extend(q, k, v, _opened(state).inner, mask, inputs)
        return self._merge(out), AttentionState(inner, count)

    def remember(self, context: Tensor, mask: Mask | None = None) -> Memory:
        """The keys and values of a context (B, S, E), projected once. mask: its padding."""
        self._check(context)
        start = self.sizes.heads * self.sizes.head_dim
        bias = None if self.in_proj_bias is None else self.in_proj_bias[start:]
        k, v = self._heads(context, self.in_proj_weight[start:], bias, self._split[1:])
        if self.key_norm is not None:
            k = self.key_norm(k).to(v.dtype)
        return Memory(k, v, self._sides(context), as_mask(mask))

    def new_state(
        self,
        batch: int,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
    ) -> AttentionState:
        """The empty decoding state of ``batch`` sequences; dtype and device: the weights' own.

        Raises: Unsupported where the variant has no decoding state.
        """
        weight = self.in_proj_weight
        inner = self.attention.new_state(
            batch, self.sizes, dtype=dtype or weight.dtype, device=device or weight.device
        )
        return AttentionState(inner)

    def _heads(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, split: list[int]
    ) -> tuple[Tensor, ...]:
        """One product, seen as (B, sum(split), N, D) and cut into groups of heads."""
        projected = F.linear(x, weight, bias)
        batch, length, _ = projected.shape
        heads = projected.view(batch, length, sum(split), self.sizes.head_dim).transpose(1, 2)
        # Half the time of `split`, which passes through Python twice.
        return heads.split_with_sizes(split, 1)

    def _sides(self, x: Tensor) -> Mapping[str, Tensor]:
        """Each side input of the variant, (B, heads, S, width), from the tokens of the keys."""
        batch, length, _ = x.shape
        sides = {}
        for name, projection in self.side.items():
            heads, width = self.attention.side_inputs[name].resolve(self.sizes)
            sides[name] = projection(x).view(batch, length, heads, width).transpose(1, 2)
        return sides

    def _merge(self, out: Tensor) -> Tensor:
        """(B, H, L, D) -> (B, L, E)."""
        merged: Tensor = self.out_proj(out.transpose(1, 2).flatten(2))
        return merged

    def _place(
        self,
        q: Tensor,
        k: Tensor,
        mask: Mask | None,
        positions: Tensor | None,
        state: State | None,
    ) -> tuple[Tensor, Tensor, Mask, Count]:
        """Queries, keys and mask as the position part wants them, and the count afterwards."""
        assert self.position is not None
        mask = as_mask(mask)
        count = _opened(state).count if state is not None else Count()
        if self.position.uses_positions:
            batch, _, length, _ = q.shape
            if positions is None:
                if state is not None and count.slots != state.length:
                    raise ShapeError(
                        f"positions: expected them with this chunk, as with the first "
                        f"{state.length} tokens of this state, got none; give (L,) or (B, L)"
                    )
                mask.check(batch, None, length, length)
                positions, count = count.take(mask, length, q.device)
            elif positions.shape not in ((length,), (batch, length)):
                raise ShapeError(
                    f"positions: expected (L,) = ({length},) or (B, L) = ({batch}, {length}), got "
                    f"{tuple(positions.shape)}; leave them out to have them counted"
                )
            q, k = self.position.turn(q, k, positions)
        return q, k, self.position.constrain(mask), count

    def _across(
        self, x: Tensor, context: Tensor | Memory, mask: Mask | None, state: State | None
    ) -> Tensor:
        memory = context if isinstance(context, Memory) else self.remember(context)
        mask = memory.mask if mask is None else memory.mask & as_mask(mask)
        refusals = self._refuse_across(mask, state)
        if refusals:
            raise Unsupported(_name(self.attention), refusals)
        stop = self.sizes.heads * self.sizes.head_dim
        bias = None if self.in_proj_bias is None else self.in_proj_bias[:stop]
        (q,) = self._heads(x, self.in_proj_weight[:stop], bias, self._split[:1])
        if self.query_norm is not None:
            q = self.query_norm(q).to(memory.values.dtype)
        return self._merge(self.attention(q, memory.keys, memory.values, mask, memory.inputs))

    def _refuse_across(self, mask: Mask, state: State | None) -> list[Refusal]:
        """What has no meaning between two sequences that do not share their positions."""
        refusals = [*self._refused_between(mask)]
        if state is not None:
            way_out = "keep the Memory that `remember` makes, and give no state"
            refusals.append(Refusal("state", "cross-attention", "self-attention", way_out))
        if self.position is not None:
            kind = type(self.position).__name__
            way_out = "build this layer without a position part"
            refusals.append(Refusal("position", kind, "none across sequences", way_out))
        return refusals

    def _refused_between(self, mask: Mask) -> tuple[Refusal, ...]:
        """What depends on the variant and the parts of the mask alone: judged when first met."""
        one_set = mask.key_ids is not None and mask.query_ids is None
        if is_compiling():
            return tuple(self._judge_between(mask.parts, one_set))
        key = (self.attention, mask.parts, one_set)
        known = self._judged.get(key)
        if known is None:
            known = self._judged[key] = tuple(self._judge_between(mask.parts, one_set))
        return known

    def _judge_between(self, parts: frozenset[str], one_set: bool) -> Iterator[Refusal]:
        yield from self.attention.refusals(Call(cross=True, sizes=self.sizes, parts=parts))
        if one_set:
            way_out = "give two: Mask.segments(query_ids, key_ids)"
            yield Refusal(
                "mask", "segments with one set of ids", "a set for each sequence", way_out
            )

    def _check(self, x: Tensor) -> None:
        if x.ndim != 3 or x.shape[2] != self.d_model:
            raise ShapeError(
                f"expected (batch, length, d_model = {self.d_model}), got {tuple(x.shape)}; "
                "heads are split inside"
            )

    def extra_repr(self) -> str:
        return f"{self.d_model}, heads={self.sizes.heads}, kv_heads={self.sizes.kv_heads}"


def _opened(state: State) -> AttentionState:
    if isinstance(state, AttentionState):
        return state
    raise ConfigError(
        f"state: expected one from this layer's new_state, got {type(state).__name__}"
    )


def _name(variant: SequenceAttention) -> str:
    return type(variant).__name__
