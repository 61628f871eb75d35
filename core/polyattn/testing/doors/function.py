"""A function of (q, k, v) from elsewhere, as it is, as a subject of the suite."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from polyattn.capabilities import Capabilities, Refusal, Sizes
from polyattn.errors import Unsupported
from polyattn.mask import Mask
from polyattn.testing.doors.layout import NATIVE, Form, Layout
from polyattn.testing.doors.scales import scale_of
from polyattn.testing.process.contained import contained
from polyattn.testing.process.settings import settings_restored
from polyattn.testing.subjects.sequence import Instance, Subject, softmax_definition
from polyattn.testing.subjects.variant import seeded
from polyattn.testing.tools.cases import Sample, Shape
from polyattn.testing.tools.loops import elementwise_attention, loop_attention

Function = Callable[..., Any]
Flow = Literal["full", "causal"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Calling:
    """How a function is called, and what it does by itself; found out by trying."""

    flow: Flow = "full"
    """What it does without being asked: nothing, or causal attention."""
    layout: Layout = NATIVE
    """The order of dimensions that it speaks."""
    layout_told: bool = False
    """That order was named by the user, and not found out."""
    in_tuple: bool = False
    """The output is the first entry of a tuple."""
    scale: float | str | None = None
    """A wrong scale that is known already, a number or a rule of ``doors.scales``; the other checks
    are made as if it were meant."""
    mask_arg: str | None = None
    mask_form: Form = "full"
    true_attends: bool = True
    polarity_told: bool = False
    """What True means was told by the user, and not found out."""
    as_floats: bool = False
    """Every mask is handed on as a float: 0 may attend, -inf closes."""
    as_ones: bool = False
    """Boolean masks are handed on as floats: 1 may attend, 0 closes."""
    adds_floats: bool = False
    mask_needed: bool = False
    """It must be given a mask, open where none is asked for."""
    given: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Keywords that every call has, where it does not say otherwise."""
    causal_flag: str | None = None
    flag_with_mask: bool = False
    """The causal flag and a mask may be given together: then both must hold."""
    grouped: Mapping[str, bool] = dataclasses.field(default_factory=dict)
    """Keywords to pass where key heads are fewer."""
    meddles: bool = False
    """It writes to its inputs or to settings of the process: other checks are shielded."""


class FunctionSubject(Subject):
    """A function as it is. ``make`` gives it: afresh each time, where it was a class."""

    raw_masks = True

    def __init__(self, name: str, make: Callable[[], Function], calling: Calling) -> None:
        self.name = name
        self.make = make
        self.calling = calling
        self.capabilities = Capabilities()
        self.width: int | None = None
        self.narrowed: torch.dtype | None = None
        """A dtype that it takes and computes narrower: nothing is compared in it."""
        self.softmax = True

    def build(self, sizes: Sizes, dtype: torch.dtype, *, seed: int = 0) -> FunctionInstance:
        with seeded(seed), contained():
            function = self.make()
        if isinstance(function, nn.Module):
            # A module at the top of a file is one object, and stays in its dtype.
            # It is moved to where it is called, but keeps no hooks: the call itself is moved.
            function = copy.deepcopy(function).to(self.place.name, dtype).eval()
        return FunctionInstance(self, function)

    def fit(self, shape: Shape) -> Shape:
        if self.width is not None:
            shape = shape.of(head_dim=self.width, value_dim=self.width)
        return super().fit(shape)


class FunctionInstance(Instance):
    """A function, with the keywords that hand a mask on to it."""

    def __init__(
        self,
        subject: FunctionSubject,
        function: Function,
        *,
        shielded: bool = True,
        natural: bool = False,
    ) -> None:
        super().__init__(subject)
        self.function = function
        self.calling = subject.calling
        self._shielded = shielded and subject.calling.meddles
        self._natural = natural
        self._handed: tuple[Mask, tuple[object, ...], dict[str, Any]] | None = None

    def bare(self) -> Instance:
        assert isinstance(self.subject, FunctionSubject)
        return FunctionInstance(self.subject, self.function, shielded=False)

    def natural(self) -> Instance:
        assert isinstance(self.subject, FunctionSubject)
        return FunctionInstance(self.subject, self.function, natural=True)

    def module(self) -> nn.Module | None:
        return self.function if isinstance(self.function, nn.Module) else None

    def raw(self, sample: Sample) -> object:
        keywords = self._keywords(sample)
        if not self._shielded:
            with contained():
                return self._called((sample.q, sample.k, sample.v), keywords)
        with settings_restored(), contained():
            copies = (sample.q.clone(), sample.k.clone(), sample.v.clone())
            keywords = {
                name: x.clone() if isinstance(x, Tensor) else x for name, x in keywords.items()
            }
            return self._called(copies, keywords)

    def _called(self, tensors: tuple[Tensor, Tensor, Tensor], keywords: dict[str, Any]) -> object:
        call = self.calling.layout.call
        got = self.subject.place.call(call, self.function, tensors, keywords)
        return first(got) if self.calling.in_tuple else got

    def accepts(self, sample: Sample) -> bool:
        try:
            self.raw(sample)
        except Exception:
            # What it raises is its own affair: only wrong answers are findings here.
            return False
        return True

    def arguments(self, sample: Sample) -> dict[str, Tensor]:
        handed = self._keywords(sample)
        tensors = {name: x for name, x in handed.items() if isinstance(x, Tensor)}
        return {**sample.leaves(), **tensors}

    def definition(self, sample: Sample) -> Tensor:
        return self._softmax(sample, elementwise_attention)

    def loop(self, sample: Sample) -> Tensor:
        return self._softmax(sample, loop_attention)

    def _softmax(self, sample: Sample, formula: Callable[..., Tensor]) -> Tensor:
        mask = sample.mask
        if self.calling.flow == "causal" and mask.prefix is None:
            mask = mask & Mask.causal()
        scale = scale_of(self.calling.scale, sample)
        return softmax_definition(sample.masked(mask), scale=scale, pattern=None, formula=formula)

    def _keywords(self, sample: Sample) -> dict[str, Any]:
        """The keywords of one call; the same tensors again for the same mask."""
        sizes = (*sample.q.shape, *sample.k.shape, sample.dtype)
        if self._handed is not None and self._handed[0] is sample.mask:
            known = self._handed
            if known[1] == sizes:
                return known[2]
        keywords = {**self.calling.given, **self._mask_keywords(sample)}
        if sample.q.shape[1] != sample.k.shape[1]:
            keywords.update(self.calling.grouped)
        self._handed = (sample.mask, sizes, keywords)
        return keywords

    def _mask_keywords(self, sample: Sample) -> dict[str, Any]:
        how, mask = self.calling, sample.mask
        if how.flow == "causal" and not mask.prefix:
            mask = mask.without("causal")
        if mask.is_full:
            open_ = how.mask_arg is not None and how.mask_needed
            return {str(how.mask_arg): self._lowered(mask, sample)} if open_ else {}
        flagged: dict[str, Any] = {}
        alone = mask.parts == {"causal"}
        if how.causal_flag and mask.prefix == 0 and _square(sample):
            # A tensor that says it too would hide a flag that is dropped beside a mask.
            if alone or how.flag_with_mask:
                flagged, mask = {how.causal_flag: True}, mask.without("causal")
            if alone:
                return flagged
        if how.mask_arg is None or (how.mask_form == "keys" and mask.prefix is not None):
            why = self.subject.why_square_only or "only where L = S"
            way_out = "name the argument that takes a mask with --mask-arg"
            raise Unsupported(self.subject.name, [Refusal("causal", "L != S", why, way_out)])
        return {**flagged, how.mask_arg: self._lowered(mask, sample)}

    def _lowered(self, mask: Mask, sample: Sample) -> Tensor:
        """The mask as the tensor that this function takes."""
        batch, heads, queries, _ = sample.q.shape
        keys = sample.k.shape[2]
        if self._natural and len(mask.kept) + len(mask.biases) == 1 and len(mask.parts) == 1:
            # As the author of the mask would give it: in the shape that it was made with.
            given = (*mask.kept, *mask.biases)[0]
            bias, keep = (given, None) if mask.biases else (None, given)
        else:
            full = (batch, heads, queries, keys)
            keep = mask.keep(queries, keys, batch, heads)
            bias = mask.logit_bias(queries, keys, dtype=sample.dtype)
            keep = None if keep is None else keep.expand(full).clone()
            bias = None if bias is None else bias.expand(full).clone()
        if bias is None and self.calling.as_floats and keep is not None:
            bias = torch.zeros(keep.shape, dtype=sample.dtype)
        if bias is not None:
            bias = bias.to(sample.dtype)
            bias = bias if keep is None else bias.masked_fill(~keep, -torch.inf)
            return self._formed(bias, sample)
        if keep is None:
            keep = torch.ones(batch, heads, queries, keys, dtype=torch.bool)
        if self.calling.as_ones:
            return self._formed(keep.to(sample.dtype), sample)
        return self._formed(keep if self.calling.true_attends else ~keep, sample)

    def _formed(self, mask: Tensor, sample: Sample) -> Tensor:
        """A mask that broadcasts to (B, H, L, S), in the form that is taken."""
        layout, form = self.calling.layout, self.calling.mask_form
        if layout.folded and form == "full":
            mask = mask.expand(*sample.q.shape[:3], sample.k.shape[2])
        return form_of(mask, form, layout, sample.q.shape[1])


def form_of(mask: Tensor, form: Form, layout: Layout, heads: int) -> Tensor:
    """A (B, H, L, S) mask, the same for all that the form cannot tell apart, in that form."""
    if form == "pairs":
        return mask[0, 0]
    return layout.mask(mask[:, 0, 0] if form == "keys" else mask, form, heads)


def first(got: Any) -> Any:
    """The output; out of a tuple its first entry."""
    return got[0] if isinstance(got, tuple | list) and got else got


def _square(sample: Sample) -> bool:
    return sample.q.shape[2] == sample.k.shape[2]
