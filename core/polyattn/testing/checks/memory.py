"""L. Memory and size: what is allocated, what is never written, what is too long for an int."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import warnings
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from polyattn.capabilities import Part
from polyattn.mask import Mask
from polyattn.testing.planned import Trait, having
from polyattn.testing.results import Mismatch, Seen, proves
from polyattn.testing.subjects.sequence import Instance, Subject, blaming
from polyattn.testing.tools.cases import SQUARE, Sample, Shape, shape_of
from polyattn.testing.tools.compare import output_tolerance, same_outcome
from polyattn.testing.tools.masks import combine, needed
from polyattn.testing.tools.numerics import compare, need_finite

SHORT = 512
TIMES = 4
MOST = 6.0
"""By how much the peak may grow where the length grows fourfold: linear is 4, quadratic 16."""


@having(Trait.ON_THE_CPU)
@proves(
    "For four times the length its peak of memory, gradients included, grows less than sixfold.",
    causes=(
        "the logits or a mask written out, (L, S)",
        "a cumulative sum that keeps a matrix for every position",
        "a block or a rank that grows with the length",
    ),
    claim="linear_memory",
)
def check_no_quadratic_memory(subject: Subject) -> None:
    short, long = (
        subject.fit(Shape(name="", batch=1, queries=n, keys=n)) for n in (SHORT, TIMES * SHORT)
    )
    sizes = dataclasses.replace(short.sizes, max_length=long.keys)
    with blaming(f"sizes {sizes}"):
        instance = subject.build(sizes, subject.dtype)
    peaks = [_peak(instance, subject.draw(shape)) for shape in (short, long)]
    if peaks[1] > MOST * peaks[0]:
        what = f"the peak of memory grew from {peaks[0]:,} to {peaks[1]:,} bytes"
        given = f"{subject.draw(long).describe()}, against {short.keys} keys"
        growth = peaks[1] / peaks[0]
        raise Mismatch(Seen(what=what, given=given, got=growth, expected=TIMES, tolerance=2.0))


def _peak(instance: Instance, sample: Sample) -> int:
    """The most bytes that a call, and its backward pass where there is one, hold at once."""

    def call() -> None:
        if not instance.subject.backward:
            instance(sample)
            return
        out = instance(sample.each(lambda x: x.detach().requires_grad_()))
        with blaming(sample.describe()):
            torch.autograd.backward(out.sum())

    call()  # What is made once and kept is not counted.
    return peak_of(call)


def peak_of(call: Callable[[], object]) -> int:
    """The most bytes beyond those held before, seen at any time during ``call``, on the CPU."""
    with contextlib.ExitStack() as stack:
        with _quiet():
            profiler = stack.enter_context(
                profile(activities=[ProfilerActivity.CPU], profile_memory=True)
            )
        call()
        with _quiet():
            stack.close()
    result = profiler.profiler
    assert result is not None
    events = [e for e in result.kineto_results.events() if e.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The profiler writes to the process's stream when it starts and stops."""
    sys.stderr.flush()
    stream, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(stream, 2)
        os.close(stream)
        os.close(nowhere)


# Of the batch there are 73,728 rows: more than 16 bits count.
LARGE: dict[str, Shape] = {
    "batch": Shape(name="", batch=4096, heads=9, queries=2, keys=2, head_dim=2, value_dim=2),
    "length": Shape(
        name="", batch=1, heads=1, queries=65_600, keys=65_600, head_dim=1, value_dim=1
    ),
}
NEAR = 48
"""How many of a long sequence's last positions are compared."""


@proves(
    "4096 samples, and more than 65,536 positions of linear memory, give what few of them do.",
    causes=(
        "an offset or an index of 16 bits",
        "a grid, or a table of blocks, with a largest size",
        "a sum over so many keys in too narrow a type",
    ),
)
def check_large_sizes(subject: Subject, case: str) -> None:
    shape = subject.fit(LARGE[case])
    sample = subject.draw(shape)
    if case == "batch":
        instance = subject.at(shape)
        few = torch.tensor([0, 1, 2047, 4095])
        with torch.no_grad():
            got, want = instance(sample)[few], instance(_with_needed(subject, sample.rows(few)))
    else:
        got, want, sample = _last_of_many(subject, shape, sample)
    tolerance = output_tolerance(sample)
    compare("the output", got, want, tolerance=tolerance, given=sample.describe())


def _last_of_many(subject: Subject, shape: Shape, sample: Sample) -> tuple[Tensor, Tensor, Sample]:
    """The last positions of a sequence of which the rest is padding, and those alone."""
    sizes = dataclasses.replace(shape.sizes, max_length=shape.keys)
    with blaming(f"sizes {sizes}"):
        instance = subject.build(sizes, subject.dtype)
    real = (torch.arange(shape.keys) >= shape.keys - NEAR)[None]
    last = slice(shape.keys - NEAR, None)
    padded = sample.masked(sample.mask & Mask.padding(real))
    with torch.no_grad():
        alone = _with_needed(subject, sample.positions(last))
        return instance(padded)[:, :, last], instance(alone), padded


def _with_needed(subject: Subject, some: Sample) -> Sample:
    """Some of the samples or tokens, with the mask that they must have."""
    return some.masked(needed(subject.capabilities, shape_of(some)))


@contextlib.contextmanager
def _memory_of_nan() -> Iterator[None]:
    """All memory that torch hands out is NaN until it is written. The runner puts this back."""
    before = torch.are_deterministic_algorithms_enabled()
    only_warns = torch.is_deterministic_algorithms_warn_only_enabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(before, warn_only=only_warns)


@having(Trait.ON_THE_CPU)
@proves(
    "No number of the output or of a gradient is left as the memory happened to be.",
    causes=(
        "empty_like() with rows, heads or a last block that nothing writes to",
        "memory that is written only where the mask is open",
        "0 * x where x was never written: NaN",
        "rows without a key that are NaN in any memory: see check_fully_masked_rows",
    ),
)
def check_no_uninitialised_output(subject: Subject, parts: tuple[Part, ...] = ()) -> None:
    shape = subject.fit(SQUARE)
    mask = combine(sorted(subject.capabilities.requires | frozenset(parts)), shape)
    if "padding" in parts:
        # One sample has no key at all: its rows are written by nobody, unless on purpose.
        mask = mask & Mask.padding(torch.arange(shape.batch)[:, None].expand(-1, shape.keys) > 0)
    sample, instance = subject.draw(shape).masked(mask), subject.at(shape)
    given = f"{sample.describe()}, in memory filled with NaN"
    if not subject.backward:
        want = instance(sample)
        need_finite("the output", want, sample.describe())
        with _memory_of_nan():
            got = instance(sample)
        need_finite("the output", got, given)
        compare("the output", got, want, tolerance=output_tolerance(sample), given=given)
        return
    outcome = instance.run(sample)
    # What is NaN in any memory is a finding by itself.
    need_finite("the output", outcome.out, sample.describe())
    for name, grad in outcome.grads.items():
        need_finite(f"the gradient of {name}", grad, sample.describe())
    with _memory_of_nan():
        poisoned = instance.run(sample)
    same_outcome(poisoned, outcome, sample, given=given)


REPEATS = 20


@proves(
    "Its gradients are the same to the last bit, however often they are taken.",
    causes=(
        "sums of several threads that are added in the order in which they finish",
        "memory that is read before it is written",
    ),
)
def check_deterministic_backward(subject: Subject) -> None:
    shape = subject.fit(SQUARE.of(queries=70, keys=70))
    sample, instance = subject.draw(shape), subject.at(shape)
    first = instance.run(sample)
    for repeat in range(1, REPEATS):
        again = instance.run(sample)
        given = f"{sample.describe()}, repeat {repeat} of {REPEATS}"
        for name, grad in first.grads.items():
            compare(f"the gradient of {name}", again.grads[name], grad, tolerance=0.0, given=given)
