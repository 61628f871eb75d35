"""F. Decoding states: values that are never written to, and that take only tokens that fit."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from polyattn.state import State
from polyattn.testing.checks.causality import causal_sample
from polyattn.testing.results import proves
from polyattn.testing.subjects.sequence import Instance, Subject, blaming
from polyattn.testing.tools.cases import SQUARE, Sample, shape_of
from polyattn.testing.tools.compare import output_tolerance
from polyattn.testing.tools.numerics import compare
from polyattn.testing.tools.raising import need_value_error

KNOWN = 5
"""Tokens that a state has seen before anything is asked of it."""

MODES: dict[str, type[AbstractContextManager[object]]] = {
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "gradients": nullcontext,
}


@proves(
    "A state is a value: extended twice it answers twice the same, and reorder moves its samples.",
    causes=(
        "a step that writes into the tensors of the state it was given",
        "a buffer shared by two states that grew from one",
        "reorder() that forgets one of the tensors, or the padding",
    ),
    claim="state",
)
def check_state_is_a_value(subject: Subject, mode: str) -> None:
    shape = subject.fit(SQUARE.of(batch=3))
    sample, instance = causal_sample(subject, shape), subject.at(shape)
    given = f"{sample.describe()}, {mode}"
    with MODES[mode](), blaming(given):
        if mode == "gradients":
            sample = sample.each(lambda x: x.clone().requires_grad_())
        state = _seen(instance, sample)
        first, grown = _next(instance, sample, state, KNOWN, 3)
        _next(instance, sample.each(lambda x: -x), state, KNOWN, 4)
        again, _ = _next(instance, sample, state, KNOWN, 3)
        _same("the output for a state extended a second time", again, first, sample, given)
        whole = instance(sample)
        later, _ = _next(instance, sample, grown, KNOWN + 3, 1)
        place = slice(KNOWN + 3, KNOWN + 4)
        told = "the output after an older state was extended otherwise"
        _same(told, later, whole[:, :, place], sample, given)
        index = torch.tensor([2, 0, 0])
        moved, _ = _next(instance, sample.rows(index), state.reorder(index), KNOWN, 3)
        _same("the output after reorder([2, 0, 0])", moved, first[index], sample, given)
        again, _ = _next(instance, sample, state, KNOWN, 3)
        _same("the output for a state that was reordered elsewhere", again, first, sample, given)


def _same(what: str, got: torch.Tensor, expected: torch.Tensor, sample: Sample, given: str) -> None:
    compare(what, got, expected, tolerance=output_tolerance(sample), given=given)


def _seen(instance: Instance, sample: Sample) -> State:
    """The state after the first tokens."""
    state = instance.new_state(sample.q.shape[0], shape_of(sample).sizes, sample.dtype)
    return _next(instance, sample, state, 0, KNOWN)[1]


def _next(
    instance: Instance, sample: Sample, state: State, start: int, tokens: int
) -> tuple[torch.Tensor, State]:
    chunk = sample.positions(slice(start, start + tokens))
    return instance.extend(chunk.masked(sample.mask.without("causal")), state)


MISFITS = ("one_sample", "more_samples", "dtype", "head_width")
"""What the tokens that a state is given differ in from those that it has seen."""


@proves(
    "Tokens of another batch, dtype or width than the state's raise: they are never answered.",
    causes=(
        "a state that is added to, and broadcasts over a batch of one",
        "torch.cat over promoted dtypes",
        "a buffer that converts what is copied into it",
    ),
    claim="state",
)
def check_state_fits(subject: Subject, case: str) -> None:
    shape = subject.fit(SQUARE.of(batch=3))
    sample, instance = causal_sample(subject, shape), subject.at(shape)
    with torch.no_grad():
        with blaming(sample.describe()):
            state = _seen(instance, sample)
        other = _misfit(sample, case)
        given = f"{sample.describe()}; then {other.describe()}"
        told = f"a token that does not fit ({case})"
        need_value_error(lambda: _next(instance, other, state, KNOWN, 1), told, given)


def _misfit(sample: Sample, case: str) -> Sample:
    if case == "one_sample":
        return sample.rows(slice(0, 1))
    if case == "more_samples":
        return sample.rows(torch.tensor([0, 1, 2, 0]))
    if case == "head_width":
        return sample.having(q=sample.q[..., :-1], k=sample.k[..., :-1])
    narrow = torch.float32 if sample.dtype == torch.float64 else torch.float64
    return sample.to(narrow)
