"""Position modules as the checks see them: what turns heads, what is added, what is a distance.

Written for strangers' modules as well: say how one is built and what it claims, and
``polyattn.testing.position_checks`` gives the checks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from polyattn.layers.positions import Count, HeadPosition
from polyattn.mask import Mask
from polyattn.testing.results import Mismatch, Seen
from polyattn.testing.subjects.sequence import blaming
from polyattn.testing.tools.numerics import need_tensor

WIDTH = 16
"""Of a head, and of a model, in these checks."""

HEADS = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rotation:
    """A ``HeadPosition`` that turns queries and keys.

    build: from the width of a head. pairing: which channels make a plane, "halves" (c and
    c + D/2) or "neighbours" (2c and 2c + 1), None where it is not to be compared with the formula.
    base: plane c of W turned channels turns by ``position * base^(-2 c / W)``.
    share: the part of the channels, the first ones, that is turned; the rest is left as it is.
    """

    name: str
    build: Callable[[int], HeadPosition]
    pairing: Literal["halves", "neighbours"] | None = "halves"
    base: float = 10_000.0
    share: float = 1.0

    def turn(
        self, x: Tensor, positions: Tensor, given: str, *, keys: bool = False, half: bool = False
    ) -> Tensor:
        """x (B, H, L, D) turned as queries, or as keys; ``half``: by a module of x's dtype."""
        with blaming(given):
            module = self.build(x.shape[-1])
            turned = (module.to(x.dtype) if half else module).turn(x, x, positions)
            return need_tensor("what was turned", turned[int(keys)], given)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Embedding:
    """A module that gives a vector for each position: (L,) or (B, L) -> (..., E).

    build: from the width of the model. max_length: what it refuses beyond, None for no limit.
    relative: p . q depends on the distance of two positions alone (their vectors multiplied).
    waves: it claims sines in the even channels and cosines in the odd, with this base.
    """

    name: str
    build: Callable[[int], nn.Module]
    max_length: int | None = None
    relative: bool = False
    waves: float | None = None

    def vectors(
        self, positions: Tensor, given: str, *, width: int = WIDTH, dtype: torch.dtype | None = None
    ) -> Tensor:
        """What a module of ``width``, always with the same parameters, gives."""
        with blaming(given), torch.no_grad():
            module = self.made(width)
            module = module if dtype is None else module.to(dtype)
            return need_tensor("the vectors", module(positions), given)

    def made(self, width: int = WIDTH) -> nn.Module:
        """A module in evaluation mode; the global random state is put back."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return self.build(width).eval()


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistanceBias:
    """A ``HeadPosition`` that adds to the logits by distance, through the mask.

    build: from the number of heads. recipe: "paper" for the slopes of Press et al.
    """

    name: str
    build: Callable[[int], HeadPosition]
    recipe: Literal["paper"] | None = "paper"

    def bias(
        self, heads: int, queries: int, keys: int, given: str, *, dtype: torch.dtype | None = None
    ) -> Tensor:
        """What is added, (H, L, S) in float64; ``dtype``: of the module."""
        with blaming(given):
            module = self.build(heads)
            module = module if dtype is None else module.to(dtype)
            mask = module.constrain(Mask.full())
            added = mask.logit_bias(queries, keys, dtype=torch.float64)
        if added is None:
            raise Mismatch(Seen(what="it adds nothing to the logits", given=given))
        return added.expand(1, heads, queries, keys)[0]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Counting:
    """A ``Count``: which position each token has."""

    name: str
    start: Callable[[], Count]


PositionSubject = Rotation | Embedding | DistanceBias | Counting
