"""Where a subject's code runs. Samples, definitions and comparisons stay on the CPU.

Tensors cross at one place: ``Place.call``, or the hooks that ``Place.settle`` puts on a module.
What goes there keeps its strides, gradients flow back, and what was written to there is written to
here, so that no check has to know of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from polyattn.errors import ConfigError, Unavailable
from polyattn.mask import Mask
from polyattn.testing.results import Mismatch, Seen

M = TypeVar("M", bound=nn.Module)

_ORIGINAL = "polyattn_original"
"""What a tensor that was carried over is known by: the one that it was made of."""


@dataclasses.dataclass(frozen=True)
class Place:
    """A device by its type: ``cpu``, ``cuda``."""

    name: str = "cpu"

    @property
    def here(self) -> bool:
        """Whether it is where the samples are: then nothing is moved."""
        return self.name == "cpu"

    def carry(self, x: Tensor) -> Tensor:
        """x there; differentiable."""
        return x.to(self.name)

    def fetch(self, x: Tensor) -> Tensor:
        """x on the CPU again; differentiable."""
        return x.to("cpu")

    def holds(self, x: Tensor) -> bool:
        return x.device.type == self.name

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """``function(*arguments)``, computed there: every tensor and mask in the arguments is
        moved, every tensor in the result moved back.

        Raises: Mismatch where a tensor of the result lies elsewhere.
        """
        if self.here:
            return function(*arguments)
        there = _each(arguments, self._there)
        out = function(*there)
        self._write_back(there)
        return _each(out, self._home)

    def settle(self, module: M) -> M:
        """The module there; calls of it are answered from here."""
        if self.here:
            return module
        edge = Edge(self)
        module.register_forward_pre_hook(edge.enter, with_kwargs=True)
        module.register_forward_hook(edge.leave, with_kwargs=True)
        return module.to(self.name)

    def _there(self, x: Tensor) -> Tensor:
        moved = self.carry(x)
        if moved.stride() != x.stride() and x.numel():
            moved = _KeepingStrides.apply(x, self)  # type: ignore[no-untyped-call]
        if not torch.compiler.is_compiling():
            moved.__dict__[_ORIGINAL] = x
        return moved

    def _home(self, x: Tensor) -> Tensor:
        if not self.holds(x):
            raise Mismatch(Seen(what=f"the output lies on {x.device}, expected {self.name}"))
        return self.fetch(x)

    def _write_back(self, there: Any) -> None:
        if torch.compiler.is_compiling():
            return
        for moved in _tensors(there):
            original = moved.__dict__.get(_ORIGINAL)
            if original is not None:
                _write(original, self.fetch(moved.detach()))


@dataclasses.dataclass(frozen=True)
class Edge:
    """The hooks of a module whose parameters lie elsewhere. Kept in copies and pickles of it."""

    place: Place

    def enter(self, module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        return _each(args, self.place._there), _each(kwargs, self.place._there)

    def leave(self, module: nn.Module, args: Any, kwargs: Any, out: Any) -> Any:
        self.place._write_back((args, kwargs))
        return _each(out, self.place._home)


CPU = Place()
DEVICES = ("cpu", "cuda")
"""What can be asked for by name, by type and without an index."""


def place_of(name: str) -> Place:
    """The place of that name.

    Raises: ConfigError for a device that the suite does not know; Unavailable where there is none
    here.
    """
    if name not in DEVICES:
        raise ConfigError(f"device = {name!r}: expected {' or '.join(map(repr, DEVICES))}")
    if not is_here(name):
        here = " and ".join(repr(x) for x in DEVICES if is_here(x))
        raise Unavailable(
            f"device = {name!r}: there is none here ({_why_not()}), there is {here}; leave device "
            "out, or run it where torch.cuda.is_available()"
        )
    return Place(name)


def _why_not() -> str:
    """Why there is no CUDA device."""
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    return f"torch {torch.__version__} finds no CUDA device"


def is_here(name: str) -> bool:
    """Whether this machine has such a device."""
    return name == "cpu" or (name == "cuda" and torch.cuda.is_available())


class _KeepingStrides(torch.autograd.Function):
    """A copy elsewhere of a tensor with gaps or overlaps, in memory laid out as it is here."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, place: Place) -> Tensor:
        ctx.place = place
        span = 1 + sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True))
        memory = place.carry(x.as_strided((span,), (1,), x.storage_offset()))
        return memory.as_strided(x.shape, x.stride(), memory.storage_offset())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.place.fetch(grads[0]), None


def _each(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """``value`` with every tensor in it changed: in tuples, lists, mappings and masks."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mask):
        return _masked(value, change)
    if isinstance(value, Mapping):
        return {key: _each(entry, change) for key, entry in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_each(entry, change) for entry in value)
    return value


def _masked(mask: Mask, change: Callable[[Tensor], Tensor]) -> Mask:
    fields = {field.name: getattr(mask, field.name) for field in dataclasses.fields(mask)}
    return Mask(**{name: _each(value, change) for name, value in fields.items()})


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mask):
        yield from _tensors([getattr(value, x.name) for x in dataclasses.fields(value)])
    elif isinstance(value, Mapping):
        yield from _tensors(list(value.values()))
    elif isinstance(value, tuple | list):
        for entry in value:
            yield from _tensors(entry)


def _write(original: Tensor, now: Tensor) -> None:
    """Give the original the values that its copy has by now, where they are others."""
    kept = original.detach()
    same = (kept == now) | ((kept != kept) & (now != now))
    if bool(same.all()):
        return
    # Of a dimension that is expanded, one entry is all that there is in memory.
    for dim, step in enumerate(kept.stride()):
        if step == 0:
            kept, now = kept.narrow(dim, 0, 1), now.narrow(dim, 0, 1)
    with torch.no_grad():
        kept.copy_(now)
