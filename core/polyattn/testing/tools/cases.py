"""The inputs of the checks: shapes whose sizes all differ, and seeded samples of q, k, v, mask.

With B = 1 or equal masks the order of a repeat is invisible, with L = S both causal alignments
agree, with H = W swapped axes do: so there is always a rectangular shape beside the square one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor

from polyattn.capabilities import Capabilities, InputSize, Sizes
from polyattn.mask import Mask

LONGEST = 1024
"""The ``max_length`` that variants which index by position are built for here."""
SPREAD = 1.2
"""The usual spread: wrong scales and weak masks stand out by factors of 200."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape:
    """The sizes of one call: q (B, H, L, D), k (B, Hkv, S, D), v (B, Hkv, S, Dv)."""

    name: str
    batch: int = 2
    heads: int = 2
    queries: int = 5
    keys: int = 5
    head_dim: int = 8
    value_dim: int = 8
    kv_heads: int = 0

    @property
    def sizes(self) -> Sizes:
        return Sizes(
            heads=self.heads,
            head_dim=self.head_dim,
            kv_heads=self.kv_heads or self.heads,
            value_dim=self.value_dim,
            max_length=LONGEST,
        )

    def of(self, **sizes: int) -> Shape:
        """The same shape with other sizes."""
        known = {field.name for field in dataclasses.fields(self)}
        assert sizes.keys() <= known, f"Shape has no {sizes.keys() - known}"
        return dataclasses.replace(self, **sizes)  # type: ignore[arg-type]


RECTANGULAR = Shape(name="kv_longer", batch=3, queries=5, keys=7, value_dim=6)
SQUARE = Shape(name="square", batch=2, heads=3, queries=12, keys=12)
LONG_ODD = Shape(name="long_odd", batch=2, queries=37, keys=37)
LONG_MEMORY = Shape(name="long_memory", batch=1, queries=45, keys=120)
LONG_MEMORY_EVEN = Shape(name="long_memory_even", batch=1, queries=64, keys=140)
"""Far fewer queries than keys, of one sample: where blocks of one sample are taken together."""
TWO = Shape(name="two", queries=2, keys=2)
SINGLE = Shape(name="single", batch=1, heads=1, queries=1, keys=1)
TINY = Shape(name="tiny", batch=1, queries=3, keys=4, head_dim=3, value_dim=2)
TINY_EVEN = Shape(name="tiny_even", batch=1, queries=3, keys=3, head_dim=3, value_dim=3)


def fit(shape: Shape, claims: Capabilities) -> Shape:
    """``shape`` changed as little as the claims demand: lengths by their rule, L = S, Dv = D."""
    keys = fit_length(shape.keys, claims)
    queries = keys
    step = claims.lengths.multiple_of
    if shape.queries < shape.keys and claims.unequal_lengths and step > 1:
        # Code that works in blocks often wants its queries in blocks too.
        keys, queries = keys + step, keys
    elif shape.queries != shape.keys and claims.unequal_lengths:
        queries = min(shape.queries, keys - 1) if shape.queries < shape.keys else shape.queries
    value_dim = shape.value_dim if claims.value_width else shape.head_dim
    return shape.of(keys=keys, queries=queries, value_dim=value_dim)


def fit_length(keys: int, claims: Capabilities) -> int:
    """The smallest allowed length that is at least ``keys``, or else the largest allowed."""
    rule = claims.lengths
    step = rule.multiple_of
    length = -(-max(keys, rule.at_least) // step) * step
    if isinstance(rule.up_to, int) and length > rule.up_to:
        length = rule.up_to // step * step
    return length


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sample:
    """The arguments of one call, and the seed they were drawn from."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Mask
    inputs: Mapping[str, Tensor]
    seed: int
    std: float | None = None
    """The spread with which ``drawn`` gives these very numbers; None where they are changed."""

    @property
    def dtype(self) -> torch.dtype:
        return self.q.dtype

    @property
    def lengths(self) -> tuple[int, int]:
        """L and S."""
        return self.q.shape[2], self.k.shape[2]

    def leaves(self) -> dict[str, Tensor]:
        """Every tensor that a gradient can reach, by name, but for a bias inside the mask."""
        return {"q": self.q, "k": self.k, "v": self.v, **self.inputs}

    def having(self, **tensors: Tensor) -> Sample:
        """The same sample with some of its ``leaves`` exchanged."""
        return dataclasses.replace(
            self,
            q=tensors.pop("q", self.q),
            k=tensors.pop("k", self.k),
            v=tensors.pop("v", self.v),
            inputs={name: tensors.pop(name, x) for name, x in self.inputs.items()},
            std=None,
        )

    def masked(self, mask: Mask) -> Sample:
        return dataclasses.replace(self, mask=mask)

    def each(self, change: object) -> Sample:
        """The same sample with ``change`` applied to every one of its ``leaves``."""
        assert callable(change)
        return self.having(**{name: change(x) for name, x in self.leaves().items()})

    def to(self, dtype: torch.dtype) -> Sample:
        """The same numbers in another dtype; the mask stays as it is."""
        # Rounded once, they are as if they were drawn so.
        std = self.std if self.dtype in (torch.float64, dtype) else None
        return dataclasses.replace(self.each(lambda x: x.to(dtype)), std=std)

    def keys(self, index: Tensor | slice) -> Sample:
        """Only these keys, with their values and side inputs; the mask is left as it is."""
        return self.having(
            **{name: x[:, :, index] for name, x in self.leaves().items() if name != "q"}
        )

    def positions(self, index: Tensor | slice) -> Sample:
        """Only these positions of queries and keys alike; the mask is left as it is."""
        return self.each(lambda x: x[:, :, index])

    def rows(self, index: Tensor | slice) -> Sample:
        """Only these samples of the batch; the mask is left as it is."""
        return self.each(lambda x: x[index])

    def describe(self) -> str:
        """Shapes, dtype, mask and seed in one line, which ``recipes`` reads."""
        shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in self.leaves().items())
        parts = " & ".join(sorted(self.mask.parts)) or "full"
        dtype = str(self.dtype).removeprefix("torch.")
        seed = f"made from seed {self.seed}" if self.std is None else f"seed {self.seed}"
        seed += "" if self.std in (None, SPREAD) else f" at a spread of {self.std!r}"
        return f"{shapes}, {dtype}, mask {parts}, {seed}"


def drawn(
    *sizes: tuple[int, ...], dtype: str | torch.dtype, seed: int = 0, std: float = SPREAD
) -> list[Tensor]:
    """The numbers of a sample: q, k, v and its side inputs, in order."""
    dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    return [
        normal(*size, seed=1000 * seed + at, std=std).to(dtype)
        for at, size in enumerate(sizes, start=1)
    ]


def normal(*size: int, seed: int, std: float = 1.0) -> Tensor:
    """Float64 numbers from a generator of their own: the global state stays as it is.

    Without a size, one number that has no dimensions.
    """
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, generator=generator, dtype=torch.float64) * std


def draw(
    shape: Shape,
    *,
    dtype: torch.dtype,
    side_inputs: Mapping[str, InputSize],
    mask: Mask,
    seed: int = 0,
    std: float = SPREAD,
) -> Sample:
    """A seeded sample; drawn in float64 and rounded, so that dtypes see the same numbers."""
    kv_heads = shape.kv_heads or shape.heads
    resolved = {name: size.resolve(shape.sizes) for name, size in side_inputs.items()}
    sizes = {
        "q": (shape.heads, shape.queries, shape.head_dim),
        "k": (kv_heads, shape.keys, shape.head_dim),
        "v": (kv_heads, shape.keys, shape.value_dim),
    } | {name: (heads, shape.keys, width) for name, (heads, width) in resolved.items()}
    all_sizes = [(shape.batch, *size) for size in sizes.values()]
    q, k, v, *others = drawn(*all_sizes, dtype=dtype, seed=seed, std=std)
    inputs = dict(zip(side_inputs, others, strict=True))
    return Sample(q=q, k=k, v=v, mask=mask, inputs=inputs, seed=seed, std=std)


def shape_of(sample: Sample) -> Shape:
    """The sizes of a sample."""
    return Shape(
        name="",
        batch=sample.q.shape[0],
        heads=sample.q.shape[1],
        kv_heads=sample.k.shape[1],
        queries=sample.q.shape[2],
        keys=sample.k.shape[2],
        head_dim=sample.q.shape[3],
        value_dim=sample.v.shape[3],
    )
