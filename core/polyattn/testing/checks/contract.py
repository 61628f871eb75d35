"""A. Contract: shapes, dtypes, arguments left alone, no randomness, no memory, no silence."""

from __future__ import annotations

import contextlib
import io
import random
from collections.abc import Callable

import torch
from torch import Tensor

from polyattn.capabilities import Part
from polyattn.testing.planned import Trait, having
from polyattn.testing.process.settings import changes_watched, kernel_flags_watched
from polyattn.testing.results import Mismatch, Seen, proves
from polyattn.testing.subjects.sequence import DEVICE, Instance, Subject, blaming
from polyattn.testing.subjects.variant import VariantInstance, VariantSubject
from polyattn.testing.tools.cases import RECTANGULAR, SQUARE, Sample, Shape
from polyattn.testing.tools.compare import against_definition
from polyattn.testing.tools.masks import combine, with_part
from polyattn.testing.tools.numerics import compare_bits, need_finite, need_tensor


@having(Trait.PLAIN_CALL, Trait.MANNERS)
@proves(
    "The output is (B, H, L, Dv), in the dtype and on the device of the inputs, and finite.",
    causes=(
        "a squeeze() that drops a size-1 dimension",
        "a .float() left over, or a constant in another dtype",
        "heads and length not transposed back; a length or width taken from the wrong tensor",
        "a tuple returned in place of the output",
    ),
    claim="devices (dtypes), value_width, unequal_lengths",
)
def check_output_shape_dtype_device(subject: Subject, shape: Shape, dtype: torch.dtype) -> None:
    shape = subject.fit(shape)
    sample = subject.draw(shape, dtype=dtype)
    given = sample.describe()
    with blaming(given):
        got = need_tensor("the output", subject.at(shape, dtype=dtype).raw(sample), given)
    expected = (shape.batch, shape.heads, shape.queries, shape.value_dim)
    for name, found, wanted in (
        ("shape", tuple(got.shape), expected),
        ("dtype", got.dtype, dtype),
        ("device", got.device.type, DEVICE),
    ):
        if found != wanted:
            raise Mismatch(
                Seen(what=f"the output has {name} {found}, expected {wanted}", given=given)
            )
    need_finite("the output", got, given)


@having(Trait.MANNERS)
@proves(
    "The arguments are the same after a call as before, in forward and backward.",
    causes=(
        "an in-place operation on an argument: q *= scale, masked_fill_, logical_not_",
        "a view of an argument that is written to",
    ),
)
def check_inputs_not_mutated(subject: Subject, part: Part | None = None) -> None:
    shape = subject.fit(RECTANGULAR)
    sample = _sample(subject, shape, part)
    instance = subject.at(shape).bare()
    with torch.no_grad():
        _unchanged(instance, sample, lambda: instance(sample))
    if subject.backward:
        leaves = sample.each(lambda x: x.clone().requires_grad_())
        _unchanged(instance, leaves, lambda: _backward(instance, leaves))


def _backward(instance: Instance, sample: Sample) -> Tensor:
    out = instance(sample)
    with blaming(sample.describe()):
        torch.autograd.backward(out.sum())
    return out


def _unchanged(instance: Instance, sample: Sample, call: Callable[[], Tensor]) -> None:
    before = {
        name: (x.detach().clone(), x._version) for name, x in instance.arguments(sample).items()
    }
    call()
    for name, after in instance.arguments(sample).items():
        value, version = before[name]
        if after._version != version or not torch.equal(after.detach(), value):
            changed = int((after.detach() != value).sum())
            raise Mismatch(
                Seen(
                    what=f"{name} was written to: {changed} of {value.numel()} elements differ "
                    f"after the call",
                    given=sample.describe(),
                )
            )


def _sample(subject: Subject, shape: Shape, part: Part | None, seed: int = 0) -> Sample:
    sample = subject.draw(shape, seed=seed)
    if part is None:
        return sample
    return sample.masked(with_part(subject.capabilities, part, shape, seed))


@having(Trait.MANNERS)
@proves(
    "In evaluation two calls give the same bits, and no global random numbers are consumed.",
    causes=(
        "dropout not switched off in evaluation",
        "random features or blocks drawn in the call; draw them when building",
    ),
)
def check_eval_deterministic_and_rng_neutral(subject: Subject, shape: Shape = SQUARE) -> None:
    shape = subject.fit(shape)
    sample, instance = subject.draw(shape), subject.at(shape).bare()
    states = torch.get_rng_state(), random.getstate()
    first = instance(_copied(sample))
    if not torch.equal(torch.get_rng_state(), states[0]) or random.getstate() != states[1]:
        raise Mismatch(
            Seen(what="the call changed the global random state", given=sample.describe())
        )
    compare_bits(
        "the second call's output", instance(_copied(sample)), first, given=sample.describe()
    )


def _copied(sample: Sample) -> Sample:
    """Code that writes to its inputs is another check's finding."""
    return sample.each(lambda x: x.clone())


@proves(
    "A call leaves nothing behind: the same call gives the same before and after other calls.",
    causes=(
        "a cache keyed by shape or length alone: masks, cosines, biases, layouts",
        "a buffer that is written in one call and read in the next",
    ),
)
def check_call_is_stateless(subject: Subject, part: Part | None = None) -> None:
    shape = subject.fit(SQUARE)
    longer = subject.fit(SQUARE.of(queries=20, keys=20))
    shorter = subject.fit(SQUARE.of(queries=6, keys=6))
    calls = [
        _sample(subject, size, part, seed)
        for size, seed in ((shape, 0), (shape, 1), (longer, 2), (shorter, 3))
    ]
    right = [_answers_rightly(subject, size) for size in (shape, shape, longer, shorter)]
    instance = subject.at(shape)
    outputs = [instance(sample).clone() for sample in calls]
    compare_bits(
        "the first call's output, asked for again after three other calls",
        instance(calls[0]),
        outputs[0],
        given=calls[0].describe(),
    )
    for sample, got, judged in zip(calls, outputs, right, strict=True):
        if judged:
            against_definition(instance, sample, gradients=False, note="after other calls")
        else:
            compare_bits(
                "the output after other calls, against a fresh instance's",
                got,
                subject.at(shape)(sample),
                given=sample.describe(),
            )


def _answers_rightly(subject: Subject, shape: Shape) -> bool:
    """Whether the definition says what a call of this size has to give.

    Code from elsewhere may be wrong there in its very first call: that is no memory.
    """
    if not subject.has_definition or not subject.raw_masks:
        return subject.has_definition
    try:
        against_definition(subject.at(shape), subject.draw(shape, seed=9), gradients=False)
    except Mismatch:
        return False
    return True


@proves(
    "Asked for by name, this implementation runs or raises: it never falls back to another.",
    causes=(
        "an except clause that answers with a slower path",
        "attend() that calls reference(), or the function it was meant to replace",
    ),
)
def check_backend_really_used(subject: Subject, shape: Shape = SQUARE) -> None:
    shape = subject.fit(shape)
    instance = subject.at(shape)
    sample = subject.draw(shape)
    fallback = instance.fallback_of(sample)
    if fallback:
        raise Mismatch(Seen(what=fallback, given=sample.describe()))


@proves(
    "The definition stands alone: reference() runs none of attend(), step(), extend() and "
    "forward(), on whatever object.",
    causes=(
        "reference() that returns self.attend(...), or calls super().attend: write the formula",
        "reference() that decodes by step(), or calls the variant as a whole",
        "a copy of the variant that is called in the place of a definition",
    ),
)
def check_reference_stands_alone(subject: VariantSubject, parts: tuple[Part, ...] = ()) -> None:
    shape = subject.fit(SQUARE)
    sample = subject.draw(shape)
    if parts:
        sample = sample.masked(combine(sorted(subject.capabilities.requires | set(parts)), shape))
    instance = subject.at(shape)
    assert isinstance(instance, VariantInstance)
    borrowed = instance.borrowed_by_reference(sample)
    if borrowed:
        raise Mismatch(Seen(what=borrowed, given=sample.describe()))


@having(Trait.MANNERS)
@proves(
    "A call changes no setting of the process and prints nothing.",
    causes=(
        "torch.set_default_dtype, set_num_threads, set_grad_enabled or manual_seed in the call",
        "the sdpa_kernel context manager: its flags belong to the whole process",
        "os.chdir, sys.path or the warning filters changed in the call",
        "a print left from debugging",
    ),
)
def check_global_state_untouched(subject: Subject, shape: Shape = SQUARE) -> None:
    shape = subject.fit(shape)
    sample, instance = subject.draw(shape), subject.at(shape).bare()
    spoken = io.StringIO()
    with (
        changes_watched() as changed,
        contextlib.redirect_stdout(spoken),
        contextlib.redirect_stderr(spoken),
        kernel_flags_watched() as touched,
    ):
        instance(sample)
    if touched and not subject.raw_masks:
        # Put back or not: between the two, every other thread's attention runs under it.
        raise Mismatch(Seen(what="the call set the flags that choose torch's kernels"))
    if changed:
        raise Mismatch(Seen(what="the call changed " + ", ".join(changed)))
    if spoken.getvalue().strip():
        line = spoken.getvalue().strip().splitlines()[0]
        raise Mismatch(Seen(what=f"the call printed {line[:80]!r}"))
