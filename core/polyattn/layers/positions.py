"""Where a token stands: counting, and what is made of the count.

The wrapper owns positions, not the variant. A padded token is not counted, packed documents start
at zero, a decoding state continues the count. What enters with the embeddings (sinusoidal,
learned) is added by the model; what enters with the heads (rotary, ALiBi) is given to
`MultiHeadAttention`.

Letters: B batch, H heads, L queries, S keys, D head width, E model width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polyattn.errors import ConfigError, MaskError, ShapeError
from polyattn.mask import Mask, alibi_slopes
from polyattn.state import pick_samples

__all__ = ["Alibi", "Count", "HeadPosition", "Learned", "Rotary", "Sinusoidal"]


@dataclass(frozen=True, eq=False)
class Count:
    """How many tokens came so far: an immutable value that a decoding state carries.

    slots: tokens given, padded ones too. real: how many of them were real, (B,), or None while
    there was no padding. ids, keep: the segment of each slot and whether it is real, (B, slots);
    None while there are no segments (with them, a token counts those of its own segment).
    """

    slots: int = 0
    real: Tensor | None = None
    ids: Tensor | None = None
    keep: Tensor | None = None

    def take(self, mask: Mask, length: int, device: torch.device) -> tuple[Tensor, Count]:
        """The positions of the next ``length`` tokens, and the count after them.

        mask: speaks of these tokens only. Positions are (L,) where all samples count alike, else
        (B, L); a padded token stands where the real one before it does, or at zero.

        Raises: MaskError where some chunks of one sequence have segments and others have none.
        """
        ids = mask.key_ids if mask.query_ids is None else mask.query_ids
        if self.slots and length and (ids is None) != (self.ids is None):
            raise MaskError(
                f"expected segments in every chunk or in none, got {_with(self.ids)} in the first "
                f"{self.slots} tokens and {_with(ids)} now; give Mask.segments(ids) each time"
            )
        if ids is not None:
            return self._take_segments(ids, mask.real)
        after = self.slots + length
        if mask.real is None and self.real is None:
            return torch.arange(self.slots, after, device=device), Count(after)
        if mask.real is None:
            assert self.real is not None
            steps = torch.arange(length, device=device)
            return self.real[:, None] + steps, Count(after, self.real + length)
        before = self.slots if self.real is None else self.real[:, None]
        total = mask.real.sum(1) + (self.slots if self.real is None else self.real)
        return (mask.real.cumsum(1) + before - 1).clamp(min=0), Count(after, total)

    def _take_segments(self, ids: Tensor, keep: Tensor | None) -> tuple[Tensor, Count]:
        """Each token counts the earlier real ones of its own segment, wherever they lie."""
        keep = torch.ones_like(ids, dtype=torch.bool) if keep is None else keep
        if self.ids is not None and self.keep is not None:
            ids = torch.cat([self.ids, ids], 1)
            keep = torch.cat([self.keep, keep], 1)
        # Sorted by segment, the tokens of one segment lie together and in their old order.
        order = ids.argsort(dim=1, stable=True)
        sorted_ids = ids.gather(1, order)
        counted = keep.gather(1, order).cumsum(1)
        start = torch.searchsorted(sorted_ids, sorted_ids)
        within = counted - F.pad(counted, (1, 0)).gather(1, start) - 1
        positions = torch.empty_like(within).scatter_(1, order, within.clamp(min=0))
        return positions[:, self.slots :], Count(ids.shape[1], None, ids, keep)

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors it holds."""
        return sum(t.nbytes for t in (self.real, self.ids, self.keep) if t is not None)

    def reorder(self, index: Tensor) -> Count:
        """The count of the samples picked by ``index`` (integer, any length)."""
        tensors = (self.real, self.ids, self.keep)
        real, ids, keep = (None if t is None else pick_samples(t, index) for t in tensors)
        return Count(self.slots, real, ids, keep)


def _with(ids: Tensor | None) -> str:
    return "none" if ids is None else "some"


class Sinusoidal(nn.Module):
    """Sines and cosines of the position: (L,) or (B, L) -> (..., E). No parameters, no limit.

    Even channels hold ``sin(p / base^(c / E))``, each odd one the cosine of the same angle; an odd
    E ends with a sine. Vaswani et al., arXiv 1706.03762, section 3.5.
    """

    def __init__(self, d_model: int, *, base: float = 10_000.0) -> None:
        super().__init__()
        self.d_model = d_model
        self.base = base

    def forward(self, positions: Tensor) -> Tensor:
        """Integer positions (L,) or (B, L) -> float32 (L, E) or (B, L, E)."""
        angles = _angles(positions, self.d_model, self.base)
        table = torch.stack([angles.sin(), angles.cos()], -1).flatten(-2)
        return table[..., : self.d_model].to(torch.float32)

    def extra_repr(self) -> str:
        return f"{self.d_model}, base={self.base:g}"


class Learned(nn.Module):
    """One learned vector for each position below ``max_length``: (L,) or (B, L) -> (..., E)."""

    def __init__(self, max_length: int, d_model: int) -> None:
        super().__init__()
        self.max_length = max_length
        self.weight = nn.Parameter(torch.empty(max_length, d_model))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, positions: Tensor) -> Tensor:
        """Integer positions (L,) or (B, L) -> (..., E).

        Raises: ShapeError beyond ``max_length``, with both numbers.
        """
        # Reading the values waits for the device and breaks a graph, and a compiled gather checks
        # its bounds itself; on the CPU the check costs nothing.
        if positions.device.type == "cpu" and not torch.compiler.is_compiling():
            self.refuse_beyond(int(positions.max()) + 1 if positions.numel() else 0)
        return F.embedding(positions, self.weight)

    def refuse_beyond(self, length: int) -> None:
        """Raise ShapeError where ``length`` tokens do not fit."""
        if length > self.max_length:
            raise ShapeError(
                f"learned positions: expected at most {self.max_length} tokens, got {length}; "
                "shorten the sequence, raise max_length, or use rope, alibi or sinusoidal"
            )

    def extra_repr(self) -> str:
        return f"{self.max_length}, {self.weight.shape[1]}"


class HeadPosition(nn.Module):
    """Base of what a multi-head layer does about positions. By itself it does nothing."""

    uses_positions: bool = False
    """Whether `turn` reads the positions; else the wrapper does not count them."""

    def turn(self, q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """q (B, H, L, D) and k (B, Hkv, L, D) of the tokens at ``positions``, (L,) or (B, L)."""
        return q, k

    def constrain(self, mask: Mask) -> Mask:
        """The mask of a call, with what this position part adds to it."""
        return mask


class Rotary(HeadPosition):
    """Turns each query and key by its position, so that q . k depends on the distance alone.

    Channel c and channel c + D/2 form a plane that turns by ``position * base^(-2 c / D)``. Angles
    are computed in float64 and tables kept in float32 or better, whatever the model's dtype: in
    half precision neighbouring positions coincide from a few hundred on. Nothing is stored, so
    nothing depends on earlier calls or is converted with the model. Su et al., arXiv 2104.09864.
    """

    uses_positions = True

    def __init__(self, head_dim: int, *, base: float = 10_000.0) -> None:
        super().__init__()
        if head_dim % 2:
            raise ConfigError(
                f"rope: expected an even head width, as channels turn in pairs, got {head_dim}; "
                "change d_model or heads, or use alibi, learned or sinusoidal"
            )
        self.head_dim = head_dim
        self.base = base

    def turn(self, q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """q (B, H, L, D), k (B, Hkv, L, D), positions (L,) or (B, L) -> both, turned."""
        dtype = torch.promote_types(q.dtype, torch.float32)
        angles = _angles(positions, self.head_dim, self.base).unsqueeze(-3)
        cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
        return _turned(q, cos, sin), _turned(k, cos, sin)

    def extra_repr(self) -> str:
        return f"{self.head_dim}, base={self.base:g}"


class Alibi(HeadPosition):
    """Adds -slope x distance to the logits, as the mask's own ``alibi`` part.

    The slopes are the paper's, fixed, one for each of H heads. Press et al., arXiv 2108.12409.
    """

    slopes: Tensor

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.register_buffer("slopes", alibi_slopes(heads), persistent=False)

    def constrain(self, mask: Mask) -> Mask:
        return mask & Mask.alibi(self.slopes)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Alibi:
        # The slopes follow the device but not the dtype, and come to life again after "meta".
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.slopes = alibi_slopes(self.slopes.numel()).to(self.slopes.device)
        return self


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x (B, H, L, D) turned by tables (L, D/2) or (B, 1, L, D/2)."""
    first, second = x.to(cos.dtype).chunk(2, dim=-1)
    turned = torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
    return turned.to(x.dtype)


def _angles(positions: Tensor, width: int, base: float) -> Tensor:
    """positions (...) -> angles (..., ceil(width / 2)), in float64 where the device has it."""
    dtype = torch.float32 if positions.device.type == "mps" else torch.float64
    channels = torch.arange(0, width, 2, device=positions.device, dtype=dtype)
    return positions[..., None].to(dtype) * base ** (-channels / width)
