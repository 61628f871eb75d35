"""The order of dimensions that a function speaks, and calling it in that order."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from polyattn.testing.tools.numerics import unfit

Form = Literal["full", "pairs", "keys"]
"""How a mask is given: (B, H, L, S), (L, S) or (B, S)."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """An order of dimensions. The suite speaks (B, H, L, D); ``call`` translates both ways.

    order: the places of the suite's dimensions, as ``permute`` takes them.
    folded: batch and heads are one dimension, (B H, L, D) before the permutation.
    alone: one sequence at a time, (L, D).
    """

    name: str
    order: tuple[int, ...]
    folded: bool = False
    alone: bool = False

    @property
    def native(self) -> bool:
        """Whether it is the suite's own."""
        return self.order == (0, 1, 2, 3) and not self.folded

    def call(
        self,
        function: Callable[..., Any],
        tensors: tuple[Tensor, Tensor, Tensor],
        keywords: Mapping[str, Any],
    ) -> Any:
        """Call ``function`` with q (B, H, L, D), k and v in its own order.

        A tensor comes back in the suite's order, and so does the first of a tuple. What has
        another number of dimensions than was expected is given as it is.
        """
        if self.native:
            return function(*tensors, **keywords)
        if self.alone:
            return self._one_by_one(function, tensors, keywords)
        handed = [self._lowered(x) for x in tensors]
        versions = [_writes(x) for x in handed]
        got = function(*handed, **keywords)
        for given, lowered, version in zip(tensors, handed, versions, strict=True):
            if _writes(lowered) != version and lowered.data_ptr() != given.data_ptr():
                # It wrote to its argument: that must be seen in what the caller holds.
                with torch.no_grad():
                    given.copy_(self._raised(lowered, given))
        if isinstance(got, tuple | list) and got:
            return (self._raised(got[0], tensors[0]), *got[1:])
        return self._raised(got, tensors[0])

    def mask(self, mask: Tensor, form: Form, heads: int) -> Tensor:
        """A mask of that form as such code takes it; (B, H, L, S) may be broadcast in B and H."""
        if not self.folded or form == "pairs":
            return mask
        if form == "keys":
            return mask.repeat_interleave(heads, 0)
        return mask.reshape(-1, *mask.shape[2:])

    def _lowered(self, x: Tensor) -> Tensor:
        base = x.reshape(-1, *x.shape[2:]) if self.folded else x
        y = base.permute(self.order)
        # Whoever speaks another order has contiguous tensors in that order.
        return y.contiguous() if x.is_contiguous() else y

    def _raised(self, got: Any, like: Tensor) -> Any:
        if not isinstance(got, Tensor) or unfit(got) or got.dim() != len(self.order):
            return got
        back = tuple(self.order.index(i) for i in range(len(self.order)))
        out = got.permute(back)
        if not self.folded:
            return out
        batch, heads = like.shape[:2]
        return out.reshape(batch, -1, *out.shape[1:]) if len(out) == batch * heads else got

    def _one_by_one(
        self,
        function: Callable[..., Any],
        tensors: tuple[Tensor, Tensor, Tensor],
        keywords: Mapping[str, Any],
    ) -> Any:
        q, k, v = (x.reshape(-1, *x.shape[2:]) for x in tensors)
        outs = []
        for i, one in enumerate(zip(q, k, v, strict=True)):
            # A mask of three dimensions is one for each sequence, one of two is for all.
            own = {
                name: x[i] if isinstance(x, Tensor) and x.dim() == 3 else x
                for name, x in keywords.items()
            }
            got = function(*one, **own)
            got = got[0] if isinstance(got, tuple | list) and got else got
            if not isinstance(got, Tensor) or unfit(got):
                return got
            outs.append(got)
        out = torch.stack(outs) if outs else q.new_zeros(*q.shape[:-1], v.shape[-1])
        return out.reshape(*tensors[0].shape[:2], *out.shape[1:])


def _writes(x: Tensor) -> int:
    """How often a tensor was written to. Those of inference mode do not count."""
    return 0 if x.is_inference() else x._version


NATIVE = Layout("(B, H, L, D)", (0, 1, 2, 3))
LAYOUTS = (
    NATIVE,
    Layout("(B, L, H, D)", (0, 2, 1, 3)),
    Layout("(L, B, H, D)", (2, 0, 1, 3)),
    Layout("(B, H, D, L)", (0, 1, 3, 2)),
    Layout("(B, L, D)", (0, 1, 2), folded=True),
    Layout("(L, B, D)", (1, 0, 2), folded=True),
    Layout("(B, D, L)", (0, 2, 1), folded=True),
    Layout("(L, D)", (0, 1), folded=True, alone=True),
)
"""The orders that are tried: four of four dimensions, the suite's own first, then fewer."""
Order = Literal["bhld", "blhd"]
ORDERS: Mapping[Order, Layout] = {"bhld": NATIVE, "blhd": LAYOUTS[1]}
"""The orders that can be asked for by name."""
