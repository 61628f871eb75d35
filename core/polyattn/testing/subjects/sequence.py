"""What the checks see: one interface for a registered variant and for a function of strangers.

A ``Subject`` is a thing to be checked, with its claims; ``build`` gives an ``Instance`` for some
sizes, which answers calls. Everything that a subject's code raises becomes a finding here, once,
so that no check has to think of it.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from polyattn.capabilities import Capabilities, InputSize, Sizes
from polyattn.errors import Unsupported
from polyattn.state import State
from polyattn.testing.process.contained import contained, words_of
from polyattn.testing.results import Mismatch, Seen
from polyattn.testing.tools.cases import Sample, Shape, draw, fit
from polyattn.testing.tools.devices import CPU, Place
from polyattn.testing.tools.loops import elementwise_attention
from polyattn.testing.tools.masks import learned_of, needed
from polyattn.testing.tools.numerics import need_shape

DEVICE = CPU.name
"""Where samples, definitions and comparisons are, whatever device the subject's code runs on."""


@contextmanager
def blaming(given: str) -> Iterator[None]:
    """Turn what the subject's code raises into a finding. Missing imports are not findings."""
    try:
        with contained():
            yield
    except (Mismatch, ImportError):
        raise
    except Unsupported as error:
        raise Mismatch(Seen(what=f"it refused: {words_of(error)}", given=given)) from error
    except Exception as error:
        text = words_of(error).strip().splitlines()
        what = f"it raised {type(error).__name__}: {text[0] if text else 'without a message'}"
        raise Mismatch(Seen(what=what, given=given)) from error


@dataclasses.dataclass(frozen=True)
class Outcome:
    """An output and the gradients of every leaf: of what the mask learns, too."""

    out: Tensor
    grads: Mapping[str, Tensor]


class Instance(ABC):
    """A subject built for some sizes, in evaluation mode."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject

    @abstractmethod
    def raw(self, sample: Sample) -> object:
        """Whatever the subject's code gives for these arguments; raises what it raises."""

    @abstractmethod
    def definition(self, sample: Sample) -> Tensor:
        """What it should give, by code that shares nothing with it, in the sample's dtype.

        Asked only where ``subject.has_definition``.
        """

    def own_reference(self, sample: Sample) -> Tensor | None:
        """What its own reference gives, where it has one."""
        return None

    def loop(self, sample: Sample) -> Tensor:
        """The definition over Python numbers. Asked only where ``subject.softmax``."""
        raise NotImplementedError

    def widened(self) -> Instance:
        """The same instance with the same parameters in float64, for its definition."""
        return self

    def arguments(self, sample: Sample) -> dict[str, Tensor]:
        """Every tensor that the subject's code is handed for this sample, by name."""
        mask = sample.mask
        held = {"real": mask.real, "query_ids": mask.query_ids, "key_ids": mask.key_ids}
        many = {"kept": mask.kept, "bias": mask.biases}
        tensors = {f"{name}{i}": x for name, xs in many.items() for i, x in enumerate(xs)}
        tensors |= {name: x for name, x in held.items() if x is not None}
        if mask.slopes is not None:
            tensors["slopes"] = mask.slopes
        return {**sample.leaves(), **{f"mask {name}": x for name, x in tensors.items()}}

    def pattern(self, queries: int, keys: int) -> Tensor | None:
        """The pattern that it restricts itself to, bool (L, S) or (H, L, S); None if all."""
        return None

    def module(self) -> torch.nn.Module | None:
        """The module behind it, where there is one."""
        return None

    @property
    def has_parameters(self) -> bool:
        module = self.module()
        return module is not None and any(True for _ in module.parameters())

    def bare(self) -> Instance:
        """The same without what shields the checks from code that meddles."""
        return self

    def natural(self) -> Instance:
        """The same, handing masks on in the shape in which they were given."""
        return self

    def accepts(self, sample: Sample) -> bool:
        """Whether it answers such a call at all, where it is free not to."""
        return True

    def fallback_of(self, sample: Sample) -> str:
        """What else than itself answered this call; empty where nothing did."""
        return ""

    def new_state(self, batch: int, sizes: Sizes, dtype: torch.dtype) -> State:
        raise NotImplementedError

    def extend(self, sample: Sample, state: State) -> tuple[Tensor, State]:
        """One chunk of a sequence; the mask speaks of the new tokens only."""
        raise NotImplementedError

    def __call__(self, sample: Sample) -> Tensor:
        """The output (B, H, L, Dv), whatever its values. Raises: Mismatch for anything else."""
        # Before the call, which may resize what it is given.
        expected, given = (*sample.q.shape[:3], sample.v.shape[3]), sample.describe()
        with blaming(given):
            got = self.raw(sample)
        return need_shape("the output", got, expected, given)

    def run(self, sample: Sample, grad_out: Tensor | None = None) -> Outcome:
        """Forward and backward; ``grad_out`` defaults to fixed random numbers."""
        return run(self, sample, grad_out, sample.describe())

    def expect(self, sample: Sample, grad_out: Tensor | None = None) -> Outcome:
        """The same of the definition."""
        return run(self.definition, sample, grad_out, "the definition, " + sample.describe())


def run(
    function: Callable[[Sample], Tensor], sample: Sample, grad_out: Tensor | None, given: str
) -> Outcome:
    """Forward and backward of ``function`` on fresh leaves of ``sample``."""
    fresh = sample.each(lambda x: x.detach().clone().requires_grad_())
    leaves = {**fresh.leaves(), **learned_of(fresh.mask)}
    out = function(fresh)
    if grad_out is None:
        grad_out = fixed_gradient(out)
    with blaming(given):
        grads = gradients(out, leaves, grad_out.to(out.dtype))
    return Outcome(out.detach(), grads)


def gradients(
    out: Tensor, leaves: Mapping[str, Tensor], grad_out: Tensor, *, again: bool = False
) -> dict[str, Tensor]:
    """The gradient of each leaf, zeros where it has none; ``again``: more are taken later.

    By ``backward``, as a training step does it: some code, checkpointed by re-entry, refuses
    ``autograd.grad``.
    """
    for leaf in leaves.values():
        leaf.grad = None  # A mask is shared by the runs that are compared.
    out.backward(grad_out, retain_graph=again)  # type: ignore[no-untyped-call]
    return {
        name: torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
        for name, leaf in leaves.items()
    }


def fixed_gradient(out: Tensor) -> Tensor:
    """Random numbers of the shape of ``out``, always the same."""
    generator = torch.Generator().manual_seed(11)
    return torch.randn(out.shape, generator=generator, dtype=torch.float64)


class Subject(ABC):
    """Something to be checked."""

    name: str
    capabilities: Capabilities
    side_inputs: Mapping[str, InputSize] = {}
    softmax: bool = True
    """Whether it is softmax over its pattern: then the suite's own loop is its definition."""
    sees_all: bool = True
    """Whether every value that mask and pattern leave open is known to count, at some query."""
    has_definition: bool = True
    why_no_definition: str = ""
    promised_window: tuple[int, int] | None = None
    """(left, right), where its options promise one."""
    why_square_only: str = ""
    """Why ``L != S`` is left out, where it was found out by trying."""
    raw_masks: bool = False
    """Whether it takes tensors for masks, as a function from elsewhere does."""
    notes: tuple[str, ...] = ()
    """What was found out about it, for the reader."""
    place: Place = CPU
    """Where its code runs; the claims are read for this device."""

    @property
    def hears_all(self) -> bool:
        """Whether every such value counts at every query, as in softmax: no weight is zero."""
        return self.sees_all and self.capabilities.exactness == "exact"

    @abstractmethod
    def build(self, sizes: Sizes, dtype: torch.dtype, *, seed: int = 0) -> Instance:
        """An instance in evaluation mode; the same seed gives the same parameters."""

    @property
    def dtypes(self) -> frozenset[torch.dtype]:
        support = self.capabilities.devices.get(self.place.name)
        return frozenset(support.dtypes) if support else frozenset()

    @property
    def backward(self) -> bool:
        support = self.capabilities.devices.get(self.place.name)
        return bool(support and support.backward)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the value checks: the widest that it claims."""
        for dtype in (torch.float64, torch.float32, torch.bfloat16):
            if dtype in self.dtypes:
                return dtype
        return torch.float32

    def fit(self, shape: Shape) -> Shape:
        """The shape changed as little as the claims demand."""
        return fit(shape, self.capabilities)

    def draw(
        self, shape: Shape, *, dtype: torch.dtype | None = None, seed: int = 0, std: float = 1.2
    ) -> Sample:
        """A sample that it must answer, with the mask that it must have."""
        return draw(
            shape,
            dtype=dtype or self.dtype,
            side_inputs=self.side_inputs,
            mask=needed(self.capabilities, shape, seed),
            seed=seed,
            std=std,
        )

    def at(self, shape: Shape, *, dtype: torch.dtype | None = None, seed: int = 0) -> Instance:
        with blaming(f"sizes {shape.sizes}"):
            return self.build(shape.sizes, dtype or self.dtype, seed=seed)


Formula = Callable[..., Tensor]


def softmax_definition(
    sample: Sample,
    *,
    scale: float | None,
    pattern: Tensor | None,
    formula: Formula = elementwise_attention,
) -> Tensor:
    """Softmax over what the pattern and the mask leave open."""
    length, keys = sample.lengths
    batch, heads = sample.q.shape[:2]
    keep = sample.mask.keep(length, keys, batch, heads)
    if pattern is not None:
        keep = pattern if keep is None else keep & pattern
    bias = sample.mask.logit_bias(length, keys, dtype=sample.dtype, device=sample.q.device)
    scale = sample.q.shape[-1] ** -0.5 if scale is None else scale
    return formula(sample.q, sample.k, sample.v, scale=scale, keep=keep, bias=bias)
