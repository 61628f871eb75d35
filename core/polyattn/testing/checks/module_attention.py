"""N. Whole modules and language models: who hears whom, with and without padding."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polyattn.testing.results import Mismatch, Seen, proves
from polyattn.testing.subjects.networks import ModuleSubject, Network, described
from polyattn.testing.subjects.sequence import blaming, fixed_gradient
from polyattn.testing.subjects.steps import DEEP, agree
from polyattn.testing.tools.numerics import need_finite


@proves(
    "What comes in is heard: every output is another one once all positions are others, but for "
    "the first where each hears only what lies some positions before it.",
    causes=(
        "an output that is replaced or multiplied by zero",
        "a branch that is computed and not added",
        "weights that are all zero in the rows of some positions",
    ),
)
def check_module_hears(subject: Network) -> None:
    running, x = subject.build(), subject.draw(2, subject.fit(8))
    given, before = described(x), running.quiet(x)

    def deaf(where: slice) -> Tensor:
        """Which outputs stay as they are, to the bit."""
        same = torch.ones(x.shape[1], dtype=torch.bool)
        for seed in (7, 8):
            after = running.quiet(subject.changed(x, where, seed=seed))
            same &= (after == before).all(-1).all(0)
        return same

    rows = deaf(slice(None))
    if bool(rows.all()):
        raise Mismatch(Seen(what="the output is the same whatever comes in", given=given))
    first = int(rows.long().argmax())
    lag = int(rows.sum())
    ahead = bool(rows[:lag].all()) and all(
        bool(deaf(slice(t - lag + 1, None))[t]) for t in range(lag, len(rows))
    )
    if lag and not ahead:
        raise Mismatch(Seen(what=f"output {first} is the same whatever comes in", given=given))


CAUSAL_CAUSES = (
    "no mask in one of the layers, or one that is off by one or turned round",
    "a softmax, norm or maximum over the positions",
    "a mask applied after the softmax, or a number in place of -inf",
)


@proves(
    "Whatever comes later may change, however loud it is, without changing an output.",
    causes=CAUSAL_CAUSES,
)
def check_module_causality_by_perturbation(subject: Network) -> None:
    running, x = subject.build(), subject.draw(2, subject.fit(12))
    before = running.quiet(x)
    length = x.shape[1]
    for t in sorted({1, 2, length // 2, length - 1}):
        for loud in (1.0, 100.0) if x.is_floating_point() else (1.0,):
            later = subject.changed(x, slice(t, None), loud=loud)
            told = f"the output of the first {t} positions, once the later ones are others,"
            given = f"{described(x)}, others {loud:g} times as large" if loud > 1 else described(x)
            agree(told, running.quiet(later)[:, :t], before[:, :t], given=given)
    if isinstance(subject, ModuleSubject):
        _causal_where_all_is_loud(subject)


SHOUT = 1e4
"""So many times as large, logits outweigh any number that stands for -inf, but for -1e9 and such,
even after projections with a spread of 0.02."""


def _causal_where_all_is_loud(subject: ModuleSubject) -> None:
    """A fill loses: where it is added, to loud closed keys; where it replaces the logits, in a row
    whose open ones are all far below zero, as at the first position, where there is one alone.

    All is equally loud, so that rounding is small beside the outputs; it is allowed more than
    elsewhere, as an FFT needs, since a fill that loses changes the whole output.
    """
    running, x = subject.build(), subject.draw(8, subject.fit(5))
    given = f"{described(x)}, all of it {SHOUT:g} times as large"
    x = x * SHOUT
    before = running.quiet(x)
    for t in sorted({1, max(1, x.shape[1] // 2)}):
        after = running.quiet(subject.changed(x, slice(t, None), loud=SHOUT))
        told = f"the output of the first {t} positions, once the later ones are others,"
        for got, want in zip(after[:, :t], before[:, :t], strict=True):
            # What overflows at such sizes says nothing of fills.
            if bool(got.isfinite().all() and want.isfinite().all()):
                agree(told, got, want, given=given, factor=64 * DEEP)


@proves(
    "No output has a gradient to what comes later.",
    causes=CAUSAL_CAUSES,
)
def check_module_causality_by_gradient(subject: ModuleSubject) -> None:
    running, x = subject.build(), subject.draw(1, subject.fit(8)).requires_grad_()
    hears_nothing_later(running(x), x, described(x))


ROUNDING = {torch.float64: 1e-12, torch.float32: 1e-6}
"""By dtype: what is so small beside a row's largest gradient is rounding, as of an FFT.

A leak that hides below has to pass the check by perturbation too, a hundred times as loud.
"""


def hears_nothing_later(out: Tensor, leaf: Tensor, given: str) -> None:
    """Whether no row of out (B, S, width) has a gradient to a later position of leaf (B, S, E)."""
    weight, reached = fixed_gradient(out).to(out.dtype), False
    for t in range(out.shape[1]):
        leaf.grad = None
        with blaming(given):
            # As training takes them: code checkpointed by re-entry refuses autograd.grad.
            torch.autograd.backward((out[:, t] * weight[:, t]).sum(), retain_graph=True)
        grad = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
        need_finite(f"the gradient of output {t}", grad, given)
        reach = grad.abs().amax((0, 2))
        heard = reach > ROUNDING.get(grad.dtype, 0.0) * reach.max()
        later = [int(j) for j in heard.nonzero().flatten() if int(j) > t]
        if later:
            what = f"output {t} has a gradient of {float(reach[later[0]]):.2e} to position "
            raise Mismatch(Seen(what=f"{what}{later[0]}, which comes later", given=given))
        reached |= bool(heard.any())
    if not reached:
        what = "no output has a gradient to any position: nothing can be said of later ones"
        raise Mismatch(Seen(what=what, given=given))


@proves(
    "The first t outputs are those of the first t positions alone, for every t.",
    causes=(
        "something that is later heard: see the checks of causality",
        "a scale, a mask or positions that depend on the length",
        "causal by blocks only",
    ),
)
def check_module_prefix_consistency(subject: Network) -> None:
    running, x = subject.build(), subject.draw(2, subject.fit(12))
    whole = running.quiet(x)
    for t in sorted({subject.fit(t) for t in (1, 2, 5, 7, 11)}):
        if t < x.shape[1]:
            told = f"the first {t} outputs, against those of the first {t} positions alone,"
            agree(told, whole[:, :t], running.quiet(x[:, :t].contiguous()), given=described(x))


PADDING_CAUSES = (
    "the mask is not handed on to one of the layers",
    "the mask read the other way round, or broadcast over the queries",
    "a mean, norm or convolution over padding too",
    "positions counted from the slot where padding comes first",
    "closed keys given a finite number in place of -inf: loud inputs outweigh it",
    "heads merged by reshape without a transpose",
)
LOUD = 1e3
"""How many times as large as the others positions are that shall outweigh a finite fill."""


@proves(
    "Padding at the end changes nothing: real positions give what they give without it.",
    causes=PADDING_CAUSES,
)
def check_module_padding_equals_truncation(subject: Network) -> None:
    lengths = [subject.fit(9), subject.fit(5), subject.fit(1)]
    _padded_equals_alone(subject, lengths, left=False)
    if isinstance(subject, ModuleSubject):
        # A fill that is added to the logits loses where padding is loud.
        _padded_equals_alone(subject, lengths, left=False, loud=LOUD)
        if subject.fit(1) == 1:
            _loud_key_alone(subject)


def _loud_key_alone(subject: ModuleSubject) -> None:
    """One real position whose logit is far below zero: a fill that replaces logits loses.

    Its weight is one whatever its logit, so that rounding of a large logit shows nowhere.
    """
    running = subject.build()
    longest, samples = subject.fit(5), 8
    x = subject.draw(samples, longest)
    keep = torch.arange(longest).expand(samples, -1) == 0
    given = f"{described(x, keep=keep)}, the real one {LOUD:g} times as large"
    x[:, 0] *= LOUD
    alone, out = running.quiet(x[:, :1]), running.quiet(x, keep=keep)[:, :1]
    for b in range(samples):
        # What is not finite even without padding is no matter of padding.
        if bool(alone[b].isfinite().all()):
            told = f"the output of the one real position of sample {b}, against it alone,"
            agree(told, out[b], alone[b], given=given)


@proves(
    "Padding at the start changes nothing: real positions give what they give without it.",
    causes=PADDING_CAUSES,
)
def check_lm_left_padding(subject: Network) -> None:
    _padded_equals_alone(subject, [subject.fit(9), subject.fit(5), subject.fit(2)], left=True)


def _padded_equals_alone(
    subject: Network, lengths: list[int], *, left: bool, loud: float = 30.0
) -> None:
    running = subject.build()
    longest = max(lengths)
    x = subject.draw(len(lengths), longest)
    keep = torch.arange(longest) < torch.tensor(lengths)[:, None]
    keep = keep.flip(1) if left else keep
    garbage = subject.changed(x, slice(None), loud=loud)
    given = described(x, keep=keep)
    x = torch.where(keep.view(*keep.shape, *[1] * (x.dim() - 2)), x, garbage)
    given += f", padding {loud:g} times as large" if x.is_floating_point() else ""
    with torch.no_grad():
        out = running(x, keep=keep)
    for b, n in enumerate(lengths):
        own = slice(longest - n, None) if left else slice(n)
        alone = running.quiet(x[b : b + 1, own])
        told = f"the output of the {n} real positions of sample {b}, against them alone,"
        agree(told, out[b : b + 1, own], alone, given=given)


@proves(
    "A sample that is all padding gives no NaN, neither in the outputs nor in the gradients, and "
    "disturbs no other sample.",
    causes=("a softmax over -inf alone: NaN, and NaN in every gradient",),
)
def check_module_fully_masked_rows(subject: Network) -> None:
    running, x = subject.build(), subject.draw(2, subject.fit(5))
    keep = torch.ones(x.shape[:2], dtype=torch.bool)
    keep[1] = False
    given = described(x, keep=keep)
    need_finite("the output of the sample without padding", running.quiet(x, keep=keep)[0], given)
    # Inside a network x comes from other layers, and requires a gradient.
    out = running(x.requires_grad_(x.is_floating_point()), keep=keep)
    with blaming(given):
        if out.requires_grad:
            torch.autograd.backward(out[0].square().sum())
    if x.grad is not None:
        told = "the gradient of x, from the outputs of the other sample alone,"
        need_finite(told, x.grad, given)
    if isinstance(running.function, nn.Module):
        for name, parameter in running.module.named_parameters():
            if parameter.grad is not None:
                told = f"the gradient of {name}, from the outputs of the other sample alone,"
                need_finite(told, parameter.grad, given)
    need_finite("the output of the sample that is all padding", out, given)


@proves(
    "Another sequence to attend to may have another length, is heard, and only by its own sample.",
    causes=(
        "a length taken from x where that of the context is meant, or the other way round",
        "keys or values computed from x",
        "a view() that mixes samples",
    ),
)
def check_module_context(subject: ModuleSubject) -> None:
    running = subject.build()
    x, context = subject.draw(3, subject.fit(5)), subject.draw(3, subject.fit(8), seed=1)
    given = described(x, context=context)
    leaf = context.clone().requires_grad_()
    out = running(x, context=leaf)
    with blaming(given):
        torch.autograd.backward((out * fixed_gradient(out)).sum())
    grad = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
    deaf = (grad.abs().amax(-1) == 0).nonzero().tolist()
    if deaf:
        what = f"no output hears position {deaf[0][1]} of the context of sample {deaf[0][0]}"
        raise Mismatch(Seen(what=what, given=given))
    alone = running.quiet(x[:1], context=context[:1])
    told = "the output of sample 0 in the batch, against the sample alone,"
    agree(told, out[:1].detach(), alone, given=given)
