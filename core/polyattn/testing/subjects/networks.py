"""What the checks of whole modules and language models see: one interface for both.

A ``Network`` is code from elsewhere that maps a batch of sequences to outputs of the same length:
a module over (B, S, E), or a language model over ids (B, S). ``build`` gives a ``Running`` one,
which answers calls; whatever its code raises becomes a finding there.
"""

from __future__ import annotations

import copy
import dataclasses
import random
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from polyattn.testing.results import Mismatch, Seen
from polyattn.testing.subjects.drawing import drawn_ids, drawn_x, how_drawn
from polyattn.testing.subjects.paddings import Padding
from polyattn.testing.subjects.sequence import blaming
from polyattn.testing.subjects.variant import seeded
from polyattn.testing.subjects.waking import wake
from polyattn.testing.tools.cases import normal
from polyattn.testing.tools.numerics import need_tensor

if TYPE_CHECKING:
    from polyattn.testing.subjects.caches import Caching

Function = Callable[..., Any]
Role = Literal["none", "positions", "zero", "x"]
"""What an argument that must be given is given: None, the positions, 0 or the input itself."""
OUTPUTS = ("logits", "last_hidden_state", "output", "out", "hidden_states")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manner:
    """How a network is called; found out by trying."""

    batch_first: bool = True
    sources: int = 0
    """Positional arguments after x that are sequences: 2 for (query, key, value)."""
    partner: int = 0
    """The length of another sequence, always the same, that stands for the second where none is
    given; 0 where x itself does."""
    fixed: Mapping[str, Role] = dataclasses.field(default_factory=dict)
    """Further arguments that must be given, and what they are given."""
    context: tuple[str, ...] = ()
    """Keywords that take another sequence to attend to, where ``sources`` is 0."""
    padding: Padding | None = None
    positions: str | None = None
    """The keyword that takes the position of each token, handed on where padding is given."""

    def call(
        self,
        function: Function,
        x: Tensor,
        *,
        keep: Tensor | None = None,
        context: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
        **keywords: Any,
    ) -> Any:
        """Call ``function`` with batch first; what comes back is left as it is."""
        own = x if self.batch_first else x.transpose(0, 1)
        other = own
        if context is None and self.partner:
            partner = normal(1, self.partner, x.shape[-1], seed=77).to(x.dtype)
            partner = partner.expand(len(x), -1, -1)
            other = partner if self.batch_first else partner.transpose(0, 1)
        if context is not None:
            other = context if self.batch_first else context.transpose(0, 1)
            keywords = {**dict.fromkeys(self.context, other), **keywords}
        roles: dict[Role, Any] = {
            "none": None,
            "positions": torch.arange(x.shape[1]),
            "zero": 0,
            "x": own.contiguous(),
        }
        given: dict[str, Any] = {name: roles[role] for name, role in self.fixed.items()}
        if keep is not None:
            assert self.padding is not None
            given[self.padding.name] = self.padding.lowered(keep, dtype)
            if self.positions is not None:
                given[self.positions] = (keep.long().cumsum(1) - 1).clamp(min=0)
        return function(own, *[other] * self.sources, **{**given, **keywords})

    def raised(self, out: Any) -> Any:
        """The output, batch first."""
        if isinstance(out, Tensor) and not self.batch_first and out.dim() > 1:
            return out.transpose(0, 1)
        return out


def picked(got: Any) -> Any:
    """The output itself: out of a tuple its first entry, out of an object what is named so."""
    if isinstance(got, Tensor):
        return got
    if isinstance(got, Mapping):
        return next((got[name] for name in OUTPUTS if name in got), got)
    for name in OUTPUTS:
        if isinstance(getattr(got, name, None), Tensor):
            return getattr(got, name)
    if isinstance(got, tuple | list) and got:
        return got[0]
    return got


class Network(ABC):
    """A module or a language model, as it is. ``make`` gives it: afresh, where it was a class."""

    dtype: torch.dtype = torch.float32
    """The dtype of the checks: float64 where it computes in that."""
    wide: bool = False
    """Whether it computes in float64."""
    causal: bool = False
    longest: int | None = None
    """The length that it takes at most, where there is a limit; else as many as are tried."""
    step: int = 1
    """Lengths are multiples of it."""
    any_length: bool = True
    """Whether it takes more lengths than one."""
    silenced: bool = True
    """Whether its dropout can be switched off in training, for all that can be seen."""
    out_width: int = 0
    """How many columns of its output are compared."""
    closed: tuple[int, ...] = ()
    """Columns of the output that are -inf everywhere, such as of ids that there are none of: they
    are left out."""
    meddles: bool = False
    """It writes to its inputs: the other checks hand it copies."""
    weights_flag: str | None = None
    """The keyword with which it gives its weights, too."""
    woken: bool = False
    """Parameters that start at zero are given other numbers, as ``waking`` says."""
    mixes: bool = True
    """Whether some position hears another, for all that was seen."""
    notes: tuple[str, ...] = ()

    def __init__(self, name: str, make: Callable[[], Function], manner: Manner) -> None:
        self.name = name
        self.make = make
        self.manner = manner

    @abstractmethod
    def draw(self, batch: int, length: int, *, seed: int = 0) -> Tensor:
        """A batch of sequences."""

    @abstractmethod
    def changed(self, x: Tensor, where: slice, *, seed: int = 7, loud: float = 1.0) -> Tensor:
        """The same with other things at those positions."""

    def open_columns(self, out: Tensor, given: str) -> Tensor:
        """The output without its ``closed`` columns. Raises: Mismatch where one is open."""
        width = self.out_width + len(self.closed)
        if not self.closed or not out.dim() or out.shape[-1] != width:
            return out
        closed = torch.zeros(width, dtype=torch.bool)
        closed[list(self.closed)] = True
        if not bool((out[..., closed] == -torch.inf).all()):
            what = "columns of the output that are -inf for other ids are numbers here"
            raise Mismatch(Seen(what=what, given=given))
        return out[..., ~closed]

    def fit(self, length: int) -> int:
        """A length that it takes, near this one."""
        if not self.any_length:
            return self.step
        length = -(-length // self.step) * self.step
        if self.longest is not None and length > self.longest:
            length = self.longest // self.step * self.step
        return max(length, self.step)

    def build(self, *, dtype: torch.dtype | None = None, seed: int = 0) -> Running:
        """One in evaluation mode; another seed gives other parameters."""
        with blaming("making it"), seeded(seed):
            function = self.make()
            if isinstance(function, nn.Module):
                function = _fresh(function, self.make, seed)
                if self.woken:
                    wake(function, seed)
                function = function.to(dtype or self.dtype).eval()
        return Running(self, function, dtype or self.dtype)


def _fresh(module: nn.Module, make: Callable[[], Function], seed: int) -> nn.Module:
    """A module of its own: a copy with other parameters, where there is but one object."""
    if make() is not module:
        return module
    try:
        module = copy.deepcopy(module)
    except Exception:
        return module  # That it cannot be copied is a finding of its own.
    if seed:
        with torch.no_grad():
            for i, parameter in enumerate(module.parameters()):
                if parameter.is_floating_point():
                    parameter.add_(normal(*parameter.shape, seed=seed + i, std=0.1))
    return module


def seed_all(seed: int) -> None:
    """Set the global generators of torch, of Python and of numpy, where that is loaded."""
    torch.manual_seed(seed)
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed)


class Running:
    """A network at hand, with the dtype that it was built for."""

    def __init__(self, subject: Network, function: Function, dtype: torch.dtype) -> None:
        self.subject = subject
        self.function = function
        self.dtype = dtype

    @property
    def module(self) -> nn.Module:
        """The module behind it; asked only where there is one."""
        assert isinstance(self.function, nn.Module), "only what is a module is asked for it"
        return self.function

    def of(self, function: Function) -> Running:
        """The same with another function, such as a copy."""
        return Running(self.subject, function, self.dtype)

    def raw(self, x: Tensor, **keywords: Any) -> Any:
        """Whatever its code gives; raises what it raises."""
        x = x.clone() if self.subject.meddles else x
        return self.subject.manner.call(self.function, x, dtype=self.dtype, **keywords)

    def __call__(self, x: Tensor, **keywords: Any) -> Tensor:
        """The output (B, S, width). Raises: Mismatch for anything else."""
        given = described(x, **keywords)
        with blaming(given):
            got = self.subject.manner.raised(picked(self.raw(x, **keywords)))
        out = self.subject.open_columns(need_tensor("the output", got, given), given)
        expected = (*x.shape[:2], self.subject.out_width or out.shape[-1])
        if out.dim() != 3 or tuple(out.shape) != expected:
            what = f"the output has shape {tuple(out.shape)}, expected {expected}"
            raise Mismatch(Seen(what=what, given=given))
        return out

    def quiet(self, x: Tensor, **keywords: Any) -> Tensor:
        """The same without gradients."""
        with torch.no_grad():
            return self(x, **keywords)


def described(x: Tensor, **keywords: Any) -> str:
    """The arguments of a call in one line, which ``recipes`` reads; how x was drawn, if it was."""
    told = [f"{'x' if x.is_floating_point() else 'ids'} {tuple(x.shape)}"]
    if x.is_floating_point():
        told[0] += f" {str(x.dtype).removeprefix('torch.')}"
    told += [how] if (how := how_drawn(x)) else []
    for name, value in keywords.items():
        if isinstance(value, Tensor) and name == "keep":
            told.append(f"real positions {value.sum(1).tolist()}")
        elif isinstance(value, Tensor):
            told.append(f"{name} {tuple(value.shape)}")
        elif value is not None:
            told.append(f"{name}={value!r:.40}")
    return ", ".join(told)


class ModuleSubject(Network):
    """A module over x (B, S, E)."""

    takes_context: bool = False
    """Whether it attends to another sequence where it is given one."""

    def __init__(self, name: str, make: Callable[[], Function], manner: Manner, width: int) -> None:
        super().__init__(name, make, manner)
        self.width = width

    def draw(self, batch: int, length: int, *, seed: int = 0) -> Tensor:
        return drawn_x(batch, length, self.width, dtype=self.dtype, seed=300 + seed)

    def changed(self, x: Tensor, where: slice, *, seed: int = 7, loud: float = 1.0) -> Tensor:
        noise = normal(*x.shape, seed=seed, std=loud).to(x.dtype)
        out = x.clone()
        out[:, where] = noise[:, where]
        return out


class ModelSubject(Network):
    """A language model over ids (B, S)."""

    causal = True
    caching: Caching | None = None
    """How it decodes with a cache, where it does."""
    limit: int | None = None
    """The greatest length that it takes, where one was found."""
    embeds: bool = False
    """Whether a layer was found that embeds the ids."""

    def __init__(self, name: str, make: Callable[[], Function], manner: Manner, vocab: int) -> None:
        super().__init__(name, make, manner)
        self.vocab = vocab

    def draw(self, batch: int, length: int, *, seed: int = 0) -> Tensor:
        return drawn_ids(batch, length, vocab=self.vocab, seed=400 + seed)

    def changed(self, x: Tensor, where: slice, *, seed: int = 7, loud: float = 1.0) -> Tensor:
        """Every id another one."""
        generator = torch.Generator().manual_seed(seed)
        shift = torch.randint(1, max(2, self.vocab), x.shape, generator=generator)
        out = x.clone()
        out[:, where] = ((x + shift) % self.vocab)[:, where]
        return out
