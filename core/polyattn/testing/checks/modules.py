"""N. Whole modules and language models: what holds of one call, and between calls."""

from __future__ import annotations

import contextlib
import io
import random
from typing import Any

import torch
from torch import Tensor, nn

from polyattn.testing.planned import Trait, having
from polyattn.testing.process.settings import settings
from polyattn.testing.results import Mismatch, Seen, proves
from polyattn.testing.subjects.networks import Network, Running, described, picked, seed_all
from polyattn.testing.subjects.paddings import Padding
from polyattn.testing.subjects.sequence import blaming, fixed_gradient
from polyattn.testing.subjects.steps import agree, same_step, step
from polyattn.testing.tools.numerics import compare_bits, largest, need_finite


@having(Trait.PLAIN_CALL, Trait.COMPARES_NOTHING)
@proves(
    "The output has a row for each position of each sample, is of the dtype of the module, and is "
    "finite.",
    causes=(
        "a squeeze() that drops a dimension of size 1",
        "heads and positions not transposed back before they are merged",
        "a branch without a return",
        "a .float() left over",
    ),
)
def check_module_output(subject: Network, batch: int, length: int) -> None:
    running, x = subject.build(), subject.draw(batch, length)
    out, given = running.quiet(x), described(x)
    if out.dtype != running.dtype:
        what = f"the output has dtype {out.dtype}, expected {running.dtype}"
        raise Mismatch(Seen(what=what, given=given))
    need_finite("the output", out, given)


@having(Trait.COMPARES_NOTHING)
@proves(
    "In evaluation two calls give the same bits, and no global random numbers are consumed.",
    causes=(
        "dropout that is on in evaluation: F.dropout without training=self.training",
        "a random projection that is drawn in each call",
        "memory from torch.empty that is read before it is written",
    ),
)
def check_module_eval_deterministic(subject: Network) -> None:
    running, x = subject.build(), subject.draw(2, subject.fit(6))
    given = described(x)
    seed_all(0)
    states = torch.get_rng_state(), random.getstate()
    first, second = running.quiet(x), running.quiet(x)
    compare_bits("the output of a second call, against the first,", second, first, given=given)
    if not torch.equal(torch.get_rng_state(), states[0]) or random.getstate() != states[1]:
        what = "a call in evaluation changes the global random state"
        raise Mismatch(Seen(what=what, given=given))


@having(Trait.COMPARES_NOTHING)
@proves(
    "The inputs are the same after a call as before, in forward and backward.",
    causes=("x += residual, x *= scale, masked_fill_ on what was given",),
)
def check_module_inputs_not_mutated(subject: Network) -> None:
    running, x = subject.build(), subject.draw(2, subject.fit(6))
    # First without gradients of x: writing to what has them raises, which tells less.
    for learned in (False, True) if x.is_floating_point() else (False,):
        _need_unchanged(running, x.clone().requires_grad_(learned))
    if subject.manner.padding is not None:
        _need_unchanged(running, x.clone(), padding=subject.manner.padding)


def _need_unchanged(running: Running, x: Tensor, padding: Padding | None = None) -> None:
    """Neither x nor the padding is written to, in forward or in backward.

    Calls the code itself: ``running`` hands copies to what is known to write.
    """
    given, held = described(x), {"input": x}
    handed: dict[str, Any] = {}
    if padding is not None:
        keep = _keep(2, x.shape[1])
        handed[padding.name] = lowered = padding.lowered(keep, running.dtype)
        held[padding.name] = lowered if isinstance(lowered, Tensor) else keep
    before = {name: tensor.detach().clone() for name, tensor in held.items()}

    def need(when: str) -> None:
        for name, tensor in held.items():
            if not torch.equal(tensor, before[name]):
                raise Mismatch(Seen(what=f"its {name} was written to{when}", given=given))

    with blaming(given):
        got = running.subject.manner.call(running.function, x, dtype=running.dtype, **handed)
    need("")
    out = picked(got)
    if isinstance(out, Tensor) and out.requires_grad:
        with blaming(f"{given}, backward"):
            out.backward(fixed_gradient(out))  # type: ignore[no-untyped-call]
        need(" in backward")
        if isinstance(running.function, nn.Module):
            running.function.zero_grad()


def _keep(batch: int, length: int) -> Tensor:
    """The last of a sample is padding, but for the first sample."""
    keep = torch.ones(batch, length, dtype=torch.bool)
    if length > 1:
        keep[1:, -1] = False
    return keep


@having(Trait.FINDS_MEMORY)
@proves(
    "A call leaves nothing behind: the same call gives the same before and after other calls.",
    causes=(
        "a mask, a table or positions kept by length or by batch, and taken for another call",
        "a cache of keys that outlives its sequence",
        "running statistics that are updated in evaluation",
    ),
)
def check_module_call_is_stateless(subject: Network) -> None:
    running, x = subject.build(), subject.draw(2, subject.fit(6))
    given = f"{described(x)}, before and after other calls"
    first = running.quiet(x)
    for batch, length, seed in ((3, 9, 1), (1, 3, 2), (2, 6, 3)):
        running.quiet(subject.draw(batch, subject.fit(length), seed=seed))
    compare_bits("the output after other calls", running.quiet(x), first, given=given)
    told = "the output after other calls, against that of a fresh one,"
    for batch, length in ((3, 9), (2, 6)):
        other = subject.draw(batch, subject.fit(length), seed=8)
        agree(told, running.quiet(other), subject.build().quiet(other), given=described(other))
    if subject.manner.padding is not None:
        keep = _keep(2, x.shape[1])
        want, given = subject.build().quiet(x, keep=keep), described(x, keep=keep)
        got = running.quiet(x, keep=keep)
        agree(told, got[keep], want[keep], given=given)
        told = "the output without padding, after a call with it,"
        compare_bits(told, running.quiet(x), first, given=given)


@having(Trait.COMPARES_NOTHING)
@proves(
    "A call changes no setting of the process and prints nothing.",
    causes=("a print left over", "torch.set_default_dtype, set_grad_enabled, set_num_threads"),
)
def check_module_global_state_untouched(subject: Network) -> None:
    running, x = subject.build(), subject.draw(2, subject.fit(6))
    given, spoken, before = described(x), io.StringIO(), settings()
    with contextlib.redirect_stdout(spoken):
        running(x)
    changed = [
        f"{name} from {value} to {settings()[name]}"
        for name, value in before.items()
        if settings()[name] != value
    ]
    if changed:
        raise Mismatch(Seen(what=f"a call changes {', '.join(changed)}", given=given))
    if spoken.getvalue().strip():
        line = spoken.getvalue().strip().splitlines()[0]
        raise Mismatch(Seen(what=f"a call printed {line[:80]!r}", given=given))


@proves(
    "A sample alone gives what it gives in a batch, whatever the others hold.",
    causes=(
        "a view() that mixes the batch with heads or positions",
        "a maximum, mean or norm taken over the batch, such as BatchNorm in training",
        "sequence first taken for batch first: nn.MultiheadAttention without batch_first=True",
    ),
)
def check_module_batch_independence(subject: Network) -> None:
    running, x = subject.build(), subject.draw(3, subject.fit(6))
    given, together = described(x), running.quiet(x)
    for b in range(3):
        told = f"the output of sample {b} in the batch, against the sample alone,"
        agree(told, together[b : b + 1], running.quiet(x[b : b + 1]), given=given)
    other = subject.changed(x, slice(None), loud=30.0)
    other[0] = x[0]
    told = "the output of sample 0, once the other samples are others,"
    agree(told, running.quiet(other)[:1], together[:1], given=given)


@proves(
    "One position alone is answered, for one sample and for several.",
    causes=("a squeeze() without a dimension", "a table or a mask cut with [:-1]"),
)
def check_module_length_one(subject: Network) -> None:
    running = subject.build()
    for batch in (1, 3):
        x = subject.draw(batch, 1)
        need_finite("the output", running.quiet(x), described(x))
        if batch > 1:
            told = "the output of sample 0 in the batch, against the sample alone,"
            agree(told, running.quiet(x)[:1], running.quiet(x[:1]), given=described(x))


LAYOUTS = ("length_before_batch", "width_first", "every_second", "one_sample_expanded")


def laid_out(x: Tensor, layout: str) -> Tensor:
    """The same numbers, or for an expanded tensor those of its first sample, in other memory."""
    if layout == "length_before_batch":
        return x.transpose(0, 1).contiguous().transpose(0, 1)
    if layout == "width_first":
        return x.transpose(-1, -2).contiguous().transpose(-1, -2)
    if layout == "every_second":
        return torch.stack([x, torch.zeros_like(x)], -1).flatten(-2)[..., ::2]
    return x[:1].expand(x.shape)


@proves(
    "Strides do not matter: inputs and gradients of any layout give what contiguous ones give.",
    causes=(
        "view() where reshape() is meant",
        "as_strided, data_ptr or a kernel that takes its inputs to be contiguous",
    ),
)
def check_module_noncontiguous(subject: Network, layout: str) -> None:
    running, x = subject.build(), laid_out(subject.draw(3, subject.fit(6)), layout)
    given = f"{described(x)}, {layout}"
    # ``clone`` keeps no overlaps, and a leaf must have none.
    got = running.quiet(x)
    agree("the output", got, running.quiet(x.contiguous()), given=given)
    if layout == LAYOUTS[0] and x.is_floating_point():
        flat = x.contiguous()
        weight = fixed_gradient(got)
        odd = weight.transpose(1, 2).contiguous().transpose(1, 2)
        want = step(running, flat, weight=weight)
        same_step(step(running, flat, weight=odd), want, given=f"{given}, its gradient transposed")


@proves(
    "In float64 it computes in float64: it agrees with float32 to its rounding, and goes beyond.",
    causes=(
        "a table or a mask that is no buffer: .double() and .to(device) leave it behind",
        "a .float() in the middle: then gradients cannot be checked by finite differences",
    ),
)
def check_module_double_precision(subject: Network) -> None:
    x = subject.draw(2, subject.fit(6))
    wide = x.double() if x.is_floating_point() else x
    narrow = x.float() if x.is_floating_point() else x
    given = described(wide)
    want = subject.build(dtype=torch.float32).quiet(narrow)
    got = subject.build(dtype=torch.float64).quiet(wide)
    if got.dtype != torch.float64:
        what = f"the output has dtype {got.dtype}, expected torch.float64"
        raise Mismatch(Seen(what=what, given=given))
    agree("the output, rounded to float32,", got.float(), want, given=given, factor=64.0)
    bend = _after_a_step(subject, wide, -STEP) + _after_a_step(subject, wide, STEP) - 2 * got
    if largest(bend) > 1e-11 * max(1.0, largest(got)):
        what = f"a step of {STEP:g} of x and of the parameters bends the output by "
        what += f"{largest(bend):.1e}: in between it is rounded to a narrower type"
        raise Mismatch(Seen(what=what, given=given))


STEP = 1e-9
"""Well below a rounding of float32, and a straight line in float64: it bends by its square."""


def _after_a_step(subject: Network, x: Tensor, step: float) -> Tensor:
    """The output in float64, once all that is real is larger by ``step`` of itself."""
    running = subject.build(dtype=torch.float64)
    function = running.function
    learned = list(function.parameters()) if isinstance(function, nn.Module) else []
    before = [parameter.detach().clone() for parameter in learned]
    with torch.no_grad():
        for parameter in learned:
            parameter.mul_(1 + step)
        out = running.quiet(x * (1 + step) if x.is_floating_point() else x)
        # A module that cannot be copied is built but once.
        for parameter, value in zip(learned, before, strict=True):
            parameter.copy_(value)
    return out
