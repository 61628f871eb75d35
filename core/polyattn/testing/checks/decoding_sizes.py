"""F. Decoding in every dtype, with one head, with sizes given late; and a causal prefix."""

from __future__ import annotations

import torch
from torch import Tensor

from polyattn.capabilities import Part
from polyattn.contract import SequenceAttention
from polyattn.errors import PolyattnError
from polyattn.mask import Mask
from polyattn.state import State
from polyattn.testing.checks.causality import causal_sample, preferring, seen_by
from polyattn.testing.checks.decoding import decode
from polyattn.testing.results import Mismatch, Seen, proves
from polyattn.testing.subjects.sequence import Instance, Subject, blaming
from polyattn.testing.subjects.variant import VariantInstance, VariantSubject, seeded
from polyattn.testing.tools.cases import SQUARE, Sample, Shape, shape_of
from polyattn.testing.tools.compare import against_definition, output_tolerance
from polyattn.testing.tools.masks import combine
from polyattn.testing.tools.numerics import compare, same_tolerance, value_tolerance

TOKENS = 120
"""Long enough for a state that is kept in a half type to lose what it was given first."""

DECODED: dict[str, Shape] = {
    "one_head": SQUARE.of(heads=1, kv_heads=1),
    "one_sample_one_head": SQUARE.of(batch=1, heads=1, kv_heads=1),
    "width_1": SQUARE.of(head_dim=1, value_dim=1),
    "as_many_heads_as_tokens": SQUARE.of(heads=4, queries=12, keys=12),
    "more_samples_than_tokens": SQUARE.of(batch=5, queries=3, keys=3),
    "three_heads_over_each_of_two": SQUARE.of(batch=4, heads=6, kv_heads=2),
    "as_many_samples_as_key_heads": SQUARE.of(batch=2, heads=4, kv_heads=2),
    "as_many_samples_as_heads": SQUARE.of(batch=4, heads=4, kv_heads=2),
}
"""Sizes at which one axis can be taken for another, or a single one for a single token."""


def _decoded(
    instance: Instance, sample: Sample, state: State, cut: tuple[int, ...]
) -> tuple[Tensor, State]:
    """The outputs of a sequence in chunks, the last of which repeats; counts its tokens."""
    outs: list[Tensor] = []
    start, total = 0, sample.lengths[1]
    sample = sample.masked(sample.mask.without("causal"))
    while start < total:
        stop = min(start + cut[min(len(outs), len(cut) - 1)], total)
        given = f"{sample.describe()}, positions {start} to {stop}"
        with blaming(given):
            out, state = instance.extend(sample.positions(slice(start, stop)), state)
        if state.length != stop:
            what = f"the state's length is {state.length} after {stop} tokens"
            raise Mismatch(Seen(what=what, given=given))
        outs.append(out)
        start = stop
    return torch.cat(outs, dim=2), state


def _start(instance: Instance, sample: Sample) -> State:
    with blaming(f"new_state for {sample.describe()}"):
        return instance.new_state(sample.q.shape[0], shape_of(sample).sizes, sample.dtype)


@proves(
    "Decoding keeps the dtype of the tokens, and its error is at most thrice that of one plain "
    "call in that dtype, plus two roundings.",
    causes=(
        "a state summed in a half type",
        "tokens and state of two dtypes in one product",
        "an output left in the dtype of the state",
    ),
    claim="state, devices (dtypes)",
)
def check_decode_low_precision(subject: Subject, dtype: torch.dtype, cut: int) -> None:
    shape = subject.fit(SQUARE.of(queries=TOKENS, keys=TOKENS, batch=1))
    sample = causal_sample(subject, shape).to(dtype)
    instance = subject.at(shape, dtype=dtype)
    given = f"{sample.describe()}, in chunks of {cut}"
    with torch.no_grad():
        got, _ = _decoded(instance, sample, _start(instance, sample), (cut,))
        if got.dtype != dtype:
            what = f"the output of decoding is {got.dtype}, expected {dtype}"
            raise Mismatch(Seen(what=what, given=given))
        want = instance.widened().definition(sample.to(torch.float64))
        plain = instance.definition(sample)
    compare(
        "the output of decoding",
        got,
        want,
        tolerance=value_tolerance(want, plain, dtype),
        given=given,
    )


REPEATED = Shape(name="", batch=1, heads=1, queries=400, keys=400, head_dim=4, value_dim=4)
"""One token, over and over: what rounding takes from its sums, it takes at every step alike."""


@proves(
    "A token that comes 400 times is decoded in a half type no worse than by one whole call: the "
    "error is at most thrice that of the call, plus two roundings.",
    causes=(
        "a state kept in the dtype of the tokens: sums belong in kit.accumulation_dtype(dtype)",
        "a state that is rounded to a half type between two steps, to save memory",
        "a normaliser kept in another dtype than what it divides",
    ),
    claim="state, devices (dtypes)",
)
def check_decode_half_sums(subject: Subject, dtype: torch.dtype) -> None:
    shape = subject.fit(REPEATED)
    sample = causal_sample(subject, shape)
    # Entries of one sign: a sum that stays near zero swallows nothing.
    sample = sample.each(lambda x: (x[:, :, :1].abs() + 0.1).expand_as(x).contiguous()).to(dtype)
    instance = subject.at(shape, dtype=dtype)
    with torch.no_grad():
        got, _ = _decoded(instance, sample, _start(instance, sample), (1,))
        whole = instance(sample)
        want = instance.widened().definition(sample.to(torch.float64))
    told, given = "the output of decoding", f"{sample.describe()}, one token repeated"
    compare(told, got, want, tolerance=value_tolerance(want, whole, dtype), given=given)


@proves(
    "Decoding works for one head, one sample and a width of one, and a state counts its tokens.",
    causes=(
        "the number of heads taken for the number of tokens",
        "squeeze() where a size is 1 by chance",
        "a path for single tokens that is taken for single heads",
    ),
    claim="state",
)
def check_decode_degenerate_sizes(subject: Subject, case: str) -> None:
    shape = subject.fit(DECODED[case])
    sample, instance = causal_sample(subject, shape), subject.at(shape)
    for cut in ((1,), (2,), (4, 1, 3)):
        with torch.no_grad():
            got, _ = _decoded(instance, sample, _start(instance, sample), cut)
            compare(
                "the output of decoding, against one causal call",
                got,
                instance(sample),
                tolerance=output_tolerance(sample),
                given=f"{sample.describe()}, chunks of {cut}",
            )


@proves(
    "A token that sees no key, because all so far is padding, is answered with zeros in decoding "
    "as well.",
    causes=(
        "0 / 0 in a short path for single tokens",
        "the policy for empty rows written for whole sequences alone",
    ),
    claim="state, masks (padding)",
)
def check_decode_rows_without_keys(subject: Subject, cut: int) -> None:
    shape = subject.fit(SQUARE.of(batch=3))
    sample, instance = causal_sample(subject, shape), subject.at(shape)
    real = torch.arange(shape.keys) >= torch.tensor([0, 2, 5]).unsqueeze(1)
    sample = sample.masked(sample.mask & Mask.padding(real))
    given = f"{sample.describe()}, in chunks of {cut}"
    with torch.no_grad():
        got = decode(instance, sample, (cut,))
    for b in range(shape.batch):
        rows = got[b, :, ~real[b]]
        what = f"the output of decoding for the padded tokens of sample {b}"
        compare(what, rows, torch.zeros_like(rows), tolerance=0.0, given=given)


@proves(
    "However small the queries, the weights of each row sum to one.",
    causes=(
        "a feature map of the queries that underflows, and 0 / 0 or an epsilon behind it",
        "a short path for single tokens that does not keep queries in range",
    ),
    claim="rows_sum_to_one",
)
def check_rows_sum_for_small_queries(subject: Subject, level: float, decoding: bool) -> None:
    dtype = torch.float32 if torch.float32 in subject.dtypes else subject.dtype
    shape = subject.fit(SQUARE)
    sample = causal_sample(subject, shape) if decoding else subject.draw(shape)
    sample = sample.having(q=sample.q * 0.1 + level, v=torch.ones_like(sample.v)).to(dtype)
    instance = subject.at(shape, dtype=dtype)
    with torch.no_grad():
        if decoding:
            got, _ = _decoded(instance, sample, _start(instance, sample), (1,))
        else:
            got = instance(sample)
    compare(
        "the output for values of 1",
        got,
        torch.ones_like(got),
        tolerance=same_tolerance(dtype, 1.0),
        given=f"{sample.describe()}, q around {level:g}{', token by token' if decoding else ''}",
    )


@proves(
    "Built without sizes, a variant decodes by those that its state was made with; a state that "
    "needs sizes and gets none is refused by name.",
    causes=(
        "start() that reads the variant's sizes and not those it is given",
        "step() that reads sizes where the tensors have them",
        "start() that takes None for sizes",
    ),
    claim="state",
)
def check_state_sizes_given_late(subject: VariantSubject) -> None:
    shape = subject.fit(SQUARE)
    sample = causal_sample(subject, shape)
    instance = sizeless(subject)
    assert instance is not None
    with torch.no_grad():
        want = subject.at(shape)(sample)
        got, _ = _decoded(instance, sample, _start(instance, sample), (5, 1))
    compare(
        "the output of decoding, against one causal call of a variant that was built with sizes",
        got,
        want,
        tolerance=output_tolerance(sample),
        given=sample.describe(),
    )
    module = instance.module()
    assert isinstance(module, SequenceAttention)
    try:
        module.new_state(shape.batch, dtype=sample.dtype)
    except PolyattnError:
        return
    except Exception as error:
        what = f"new_state without any sizes raised {type(error).__name__}, expected a ConfigError"
        raise Mismatch(Seen(what=what, given=sample.describe())) from error


def sizeless(subject: VariantSubject) -> Instance | None:
    """The variant built without sizes, or None where it needs them.

    How it says that it does, ``check_missing_sizes`` looks at.
    """
    try:
        with seeded(0):
            module = subject.factory(subject.config, None)
    except Exception:
        return None
    return VariantInstance(subject, module.to(subject.dtype).eval())


@proves(
    "Under a causal mask with a prefix every query sees the first keys as well; or the call is "
    "refused.",
    causes=(
        "a flag is_causal, which knows no prefix",
        "prefix < 0 or prefix > 0 tested where prefix is not None is meant",
        "the prefix counted from the first query",
        "a causal form of its own, attend and reference alike, that never reads mask.prefix",
    ),
    claim="masks (causal)",
)
def check_causal_prefix(
    subject: Subject,
    shape: Shape,
    prefix: int,
    parts: tuple[Part, ...] = (),
    window: tuple[int | None, int | None] | None = None,
) -> None:
    """window: in the place of the usual one, where windows are among the parts or required."""
    shape = subject.fit(shape)
    others = (subject.capabilities.requires | set(parts)) - {"causal"}
    others -= {"window"} if window else set()
    mask = Mask.causal(prefix=prefix) & combine(sorted(others), shape)
    mask = mask & Mask.window(*window) if window else mask
    sample, instance = subject.draw(shape).masked(mask), subject.at(shape)
    if subject.sees_all:
        _last_of_prefix_is_seen(instance, sample, min(prefix, shape.keys) - 1)
    against_definition(instance, sample, note=f"prefix {prefix}")


def _last_of_prefix_is_seen(instance: Instance, sample: Sample, last: int) -> None:
    """Whether query 0 hears value ``last``, wherever mask and pattern leave it open.

    No definition is asked: one that drops the prefix too would agree.
    """
    deaf = seen_by(instance, sample)[:, :, 0, last]
    calls = [sample]
    if not instance.subject.hears_all:
        calls += [preferring(sample, last, sign) for sign in (1.0, -1.0)]
    for call in calls:
        others = call.v.clone()
        others[:, :, last] *= -30.0
        with torch.no_grad():
            moved = instance(call.having(v=others))[:, :, 0] - instance(call)[:, :, 0]
        deaf = deaf & ~(moved != 0).any(-1)
    if bool(deaf.any()):
        b, h = (int(i) for i in deaf.nonzero()[0])
        what = (
            f"query 0 of sample {b}, head {h} does not depend on value {last}, the last of the "
            "prefix, which every query may see; refuse(call) may refuse a call.prefix"
        )
        raise Mismatch(Seen(what=what, given=f"{sample.describe()}, prefix {last + 1}"))
