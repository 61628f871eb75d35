"""Finding out by trying what a function of (q, k, v) is: how it is called, and what it computes."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from polyattn.mask import Mask
from polyattn.testing.doors.function import Flow, Function, first, form_of
from polyattn.testing.doors.layout import NATIVE, Form, Layout
from polyattn.testing.doors.reference import LOOSE, distance, softmax_of, triangle
from polyattn.testing.process.contained import contained, first_line, limited
from polyattn.testing.process.settings import settings, settings_restored
from polyattn.testing.results import Mismatch
from polyattn.testing.tools.cases import Sample, normal
from polyattn.testing.tools.numerics import need_tensor

MASK_NAMES = (
    "attn_mask",
    "mask",
    "attention_mask",
    "keep",
    "attn_bias",
    "bias",
    "key_padding_mask",
    "padding_mask",
    "key_mask",
)
FLAG_NAMES = ("is_causal", "causal")


@dataclasses.dataclass
class Probe:
    """One function under trial. ``say`` collects what the reader should know."""

    function: Function
    length: int = 6
    width: int = 8
    dtype: torch.dtype = torch.float32
    notes: list[str] = dataclasses.field(default_factory=list)
    error: str = ""
    """Why the last trial gave nothing."""
    patience: float | None = None
    """Seconds that one call is given."""
    layout: Layout = NATIVE
    """The order of dimensions that is spoken with the function."""
    given: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Keywords that every call has, where it does not say otherwise."""
    open_mask: tuple[str, Form] | None = None
    """A mask that every call must have, open everywhere: its name and form."""

    def say(self, note: str) -> None:
        """Keep something for the reader."""
        self.notes.append(note)

    def sample(
        self,
        *,
        heads: int = 2,
        kv_heads: int = 0,
        queries: int = 0,
        keys: int = 0,
        width: int = 0,
        value_dim: int = 0,
        dtype: torch.dtype | None = None,
    ) -> Sample:
        """A small sample of the sizes that the function takes."""
        kv_heads, queries = kv_heads or heads, queries or self.length
        keys, width = keys or self.length, width or self.width
        sizes = (
            (heads, queries, width),
            (kv_heads, keys, width),
            (kv_heads, keys, value_dim or width),
        )
        q, k, v = (
            normal(2, *size, seed=90 + i).to(dtype or self.dtype) for i, size in enumerate(sizes)
        )
        return Sample(q=q, k=k, v=v, mask=Mask.full(), inputs={}, seed=90)

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Around every call: settings put back, nothing but exceptions out, so long and no longer.

        Raises: TimeUp.
        """
        with settings_restored(), limited(self.patience), contained():
            yield

    def call(self, sample: Sample, **keywords: Any) -> Any:
        """One call, after which everything is as it was.

        Raises: what the function raises; Mismatch for a tensor that is not dense and floating.
        """
        with self.guarded():
            copies = (sample.q.clone(), sample.k.clone(), sample.v.clone())
            got = first(self.layout.call(self.function, copies, self.full(sample, keywords)))
        return need_tensor("the output", got) if isinstance(got, Tensor) else got

    def full(self, sample: Sample, keywords: Mapping[str, Any]) -> dict[str, Any]:
        """The keywords of a call, with what every call has."""
        keywords = {**self.given, **keywords}
        if self.open_mask is not None and self.open_mask[0] not in keywords:
            name, form = self.open_mask
            keep = torch.ones(*sample.q.shape[:3], sample.k.shape[2], dtype=torch.bool)
            keywords[name] = form_of(keep, form, self.layout, sample.q.shape[1])
        return keywords

    def tried(self, sample: Sample, **keywords: Any) -> Tensor | None:
        """The output if there is one of the right shape, else None."""
        try:
            got = self.call(sample, **keywords)
        except Mismatch as mismatch:
            self.error = mismatch.seen.what
            return None
        except Exception as error:
            self.error = first_line(error)[:160]
            return None
        self.error = "the output has another shape"
        expected = (*sample.q.shape[:3], sample.v.shape[3])
        return got if isinstance(got, Tensor) and tuple(got.shape) == expected else None


SIZES = (
    *((6, width) for width in (8, 16, 32, 64, 128)),
    *((8, 16), (16, 16), (16, 64), (64, 64), (128, 64), (128, 128)),
)
"""Lengths and widths that are tried, the least demanding first."""


def sizes_it_takes(probe: Probe) -> bool:
    """Find a length and a width that it answers; False where it answers none."""
    errors: list[str] = []
    for length, width in SIZES:
        probe.length, probe.width = length, width
        if probe.tried(probe.sample()) is not None:
            if length != 6:
                probe.say(
                    f"it takes no length of 6 with a width of 8 ({errors[0]}): checked at "
                    f"multiples of {length}, width {width}"
                )
            elif width != 8:
                probe.say(f"it takes no width of 8 ({errors[0]}): checked at width {width}")
            return True
        errors.append(probe.error)
    probe.length, probe.width, probe.error = 6, 8, errors[0]
    return False


def meddles(probe: Probe) -> bool:
    """Whether a call writes to its inputs or changes settings of the process."""
    sample = probe.sample()
    tensors = (sample.q, sample.k, sample.v)
    before = [x.clone() for x in tensors], settings()
    with settings_restored():
        try:
            with limited(probe.patience), contained():
                probe.layout.call(probe.function, tensors, probe.full(sample, {}))
        except Exception:
            return True
        after = settings()
    same = all(torch.equal(x, y) for x, y in zip(tensors, before[0], strict=True))
    return not same or after != before[1]


def flow_of(probe: Probe) -> Flow | None:
    """Full or causal softmax at L = S, or None where it is neither."""
    sample = probe.sample()
    got = probe.tried(sample)
    if got is None:
        return None
    if distance(got, softmax_of(sample)) < LOOSE:
        return "full"
    causal = triangle(*sample.lengths)
    return "causal" if distance(got, softmax_of(sample, causal)) < LOOSE else None


def looks_causal(probe: Probe) -> bool:
    """Whether the first output is blind to the last value, where no reference matches."""
    sample = probe.sample()
    before = probe.tried(sample)
    spoilt = sample.v.clone()
    spoilt[:, :, -1] += 5.0
    after = probe.tried(sample.having(v=spoilt))
    if before is None or after is None:
        return False
    return distance(after[:, :, 0], before[:, :, 0].double()) < 1e-3


def keywords_of(function: Function) -> dict[str, inspect.Parameter] | None:
    """Parameters by name, or None where a function has no signature to read."""
    target = function.forward if isinstance(function, torch.nn.Module) else function
    schema = getattr(target, "schema", None)
    if isinstance(schema, torch.FunctionSchema):
        # Scripted code has no signature that Python can read.
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        return {x.name: inspect.Parameter(x.name, kind) for x in schema.arguments}
    try:
        return dict(inspect.signature(target).parameters)
    except (TypeError, ValueError):
        return None


def named(function: Function, names: Sequence[str]) -> Iterator[str]:
    """Those of ``names`` that the function takes, or may take."""
    parameters = keywords_of(function)
    for name in names:
        if parameters is None or name in parameters:
            yield name


NOTHING: Mapping[str, Any] = {
    **dict.fromkeys(MASK_NAMES),
    **dict.fromkeys(("dropout", "scale", "scaling", "softmax_scale")),
    **dict.fromkeys(("dropout_p", "dropout_rate"), 0.0),
    **dict.fromkeys((*FLAG_NAMES, "training"), False),
}
"""What is given for arguments that must be given, where the suite has nothing to say."""


def give_what_it_needs(probe: Probe) -> None:
    """Find values for arguments beyond q, k and v that have no default."""
    kinds = inspect.Parameter
    parameters = list((keywords_of(probe.function) or {}).values())[3:]
    needed = [
        x.name
        for x in parameters
        if x.default is kinds.empty and x.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)
    ]
    if not needed or not all(name in NOTHING for name in needed):
        return
    probe.given = {name: NOTHING[name] for name in needed}
    told = ", ".join(f"{name}={value}" for name, value in probe.given.items())
    if probe.tried(probe.sample()) is not None:
        probe.say(f"it must be given {', '.join(needed)}: called with {told}")
        return
    masks = [name for name in needed if name in MASK_NAMES]
    forms: tuple[Form, ...] = ("full", "pairs", "keys")
    for form in forms if masks else ():
        probe.given.pop(masks[0], None)
        probe.open_mask = (masks[0], form)
        if probe.tried(probe.sample()) is not None:
            probe.say(f"it must be given {masks[0]}: an open mask, where none is asked for")
            return
    probe.given, probe.open_mask = {}, None


def causal_flag(probe: Probe, flow: Flow | None) -> str | None:
    """The keyword that makes it causal, where it has one."""
    if flow == "causal":
        return None
    sample = probe.sample()
    for name in named(probe.function, FLAG_NAMES):
        if probe.tried(sample, **{name: True}) is not None:
            probe.say(f"{name}=True is taken to ask for causal attention")
            return name
    return None


def grouped(probe: Probe) -> dict[str, bool] | None:
    """Keywords with which it takes fewer key heads; None where it does not.

    Code that reshapes gives an answer to sizes it was never meant for: what is neither the heads
    repeated nor (a fault that is often met) tiled, is no answer.
    """
    sample = probe.sample(heads=4, kv_heads=2)
    keys = {name: x for name, x in sample.leaves().items() if name != "q"}
    wide = [
        probe.tried(sample.having(**{name: x[:, owner] for name, x in keys.items()}))
        for owner in ([0, 0, 1, 1], [0, 1, 0, 1])
    ]
    for keywords in ({}, *({name: True} for name in named(probe.function, ("enable_gqa",)))):
        got = probe.tried(sample, **keywords)
        if got is None:
            continue
        if any(x is not None and distance(got, x.double()) < LOOSE for x in wide):
            return keywords
        probe.say("fewer key heads are answered, with something else: not checked")
    return None


def takes_gradients(probe: Probe) -> bool:
    """Whether a gradient reaches any of the inputs."""
    sample = probe.sample().each(lambda x: x.clone().requires_grad_())
    try:
        with probe.guarded():
            tensors = (sample.q * 1, sample.k * 1, sample.v * 1)
            out = first(probe.layout.call(probe.function, tensors, probe.full(sample, {})))
            torch.autograd.backward(out.sum())
    except Exception as error:
        probe.say(f"no gradients ({type(error).__name__}): the checks of gradients are left out")
        return False
    return True
