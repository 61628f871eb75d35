"""The checks of configs, ranges, attention maps, symmetry, dropout, and of what is not read."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

import torch

from polyattn.operation import Operation
from polyattn.testing.checks import dropout, members, options, payload, ranges, symmetry, weights
from polyattn.testing.checks.configs import check_config_roundtrip, check_missing_sizes
from polyattn.testing.checks.refusals import name_of
from polyattn.testing.generate.asking import single_parts
from polyattn.testing.planned import Check, not_claimed, planned
from polyattn.testing.subjects.sequence import Subject
from polyattn.testing.subjects.variant import VariantSubject
from polyattn.testing.tools.cases import LONG_ODD, RECTANGULAR, SQUARE, Shape


def further_value_checks(subject: Subject) -> Iterator[Check]:
    """Of a function from elsewhere nothing of this is known, or asked."""
    if not isinstance(subject, VariantSubject):
        return
    yield planned(check_config_roundtrip, "", subject)
    yield planned(check_missing_sizes, "", subject)
    for group in GROUPS:
        yield from group(subject)


def _scale(subject: VariantSubject) -> Iterator[Check]:
    check = options.check_scale_is_read
    if "scale" not in type(subject.config).model_fields:
        yield not_claimed(check, "its config has no scale")
        return
    one = SQUARE.of(queries=1)
    for name, shape in (("square", SQUARE), ("kv_longer", RECTANGULAR), ("one_query", one)):
        for parts in ((), *((part,) for part in single_parts(subject))):
            label = "-".join((name, *parts))
            yield planned(check, label, subject, shape, parts)


def _ranges(subject: VariantSubject) -> Iterator[Check]:
    claims, check = subject.capabilities, ranges.check_fp16_range
    if torch.float16 in subject.dtypes:
        for case in ranges.CASES:
            yield planned(check, case, subject, case)
    else:
        yield not_claimed(check, "float16 is not claimed")
    raised = ranges.check_row_constant_bias
    if "bias" in claims.masks and subject.softmax and torch.float32 in subject.dtypes:
        yield planned(raised, "", subject)
    else:
        yield not_claimed(raised, "softmax with a bias is not claimed")


def _autocast(subject: VariantSubject) -> Iterator[Check]:
    check = ranges.check_autocast
    if not {torch.float32, torch.bfloat16} <= subject.dtypes:
        yield not_claimed(check, "float32 and bfloat16 are not claimed")
        return
    for dtype in (torch.float32, torch.bfloat16):
        for parts in ((), *((part,) for part in sorted(single_parts(subject)))):
            label = "-".join((name_of(dtype), *parts))
            yield planned(check, label, subject, dtype, parts, may_refuse=True, extended=True)


def _hull(subject: VariantSubject) -> Iterator[Check]:
    claims, check = subject.capabilities, weights.check_output_in_value_hull
    if not claims.rows_sum_to_one:
        yield not_claimed(check, "rows_sum_to_one is not claimed")
        return
    if claims.exactness == "approximate":
        reason = "the weights of an approximation may be negative, though its rows sum to one"
        yield not_claimed(check, reason)
        return
    yield planned(check, "plain", subject)
    for part in sorted(single_parts(subject)):
        yield planned(check, part, subject, (part,))


def _maps(subject: VariantSubject) -> Iterator[Check]:
    claims, check = subject.capabilities, weights.check_weights_agree
    if not claims.linear_in_values:
        yield not_claimed(check, "linear_in_values is not claimed")
        return
    more = 3 * SQUARE.head_dim + 1
    yield planned(check, "plain", subject, RECTANGULAR)
    yield planned(check, f"{more}_keys", subject, SQUARE.of(queries=more, keys=more))
    if claims.grouped_heads != "no":
        yield planned(check, "4over2", subject, RECTANGULAR.of(heads=4, kv_heads=2))
    for part in sorted(single_parts(subject)):
        yield planned(check, part, subject, RECTANGULAR, (part,))
        if part in ("padding", "dense", "bias"):
            label = f"emptied_by_{part}"
            yield planned(check, label, subject, SQUARE, emptied=part, may_refuse=True)


def _without_order(subject: VariantSubject) -> str:
    """Why the order of keys matters to it, or is not known not to."""
    claims = subject.capabilities
    if not claims.key_order_invariant:
        return "key_order_invariant is not claimed"
    return "every call has an order" if claims.requires or subject.promised_window else ""


def _symmetry(subject: VariantSubject) -> Iterator[Check]:
    """Keys without a mask are asked about beside the other claims."""
    keys, queries = symmetry.check_key_order, symmetry.check_query_order
    twice = symmetry.check_key_duplication_invariance
    why = _without_order(subject)
    if why:
        for check in (queries, twice):
            yield not_claimed(check, why)
        return
    yield planned(queries, "plain", subject)
    for part in symmetry.ORDERLESS:
        if part in subject.capabilities.masks:
            yield planned(keys, part, subject, part)
            yield planned(queries, part, subject, part)
    claims = subject.capabilities
    if not (claims.rows_sum_to_one and claims.unequal_lengths and claims.lengths.any):
        yield not_claimed(twice, "rows that sum to one over any number of keys are not claimed")
        return
    for by in ("blocks", "pairs"):
        # A kernel of its own may well look at how many keys there are.
        yield planned(twice, by, subject, by, reports=claims.exactness != "exact")


def _payload(subject: VariantSubject) -> Iterator[Check]:
    claims, check = subject.capabilities, payload.check_masked_payload_ignored
    if not claims.nan_blind:
        yield not_claimed(check, "nan_blind is not claimed")
        return
    for part in payload.CLOSING:
        if part in claims.masks:
            for held in payload.PAYLOADS:
                yield planned(check, f"{part}-{held}", subject, part, held)


def _dropout(subject: VariantSubject) -> Iterator[Check]:
    check, claimed = dropout.check_dropout_gradient, subject.capabilities.dropout
    if not claimed:
        yield not_claimed(check, "dropout is not claimed")
    elif not subject.backward or torch.float64 not in subject.dtypes:
        yield not_claimed(check, "gradients in float64 are not claimed")
    else:
        yield planned(check, "p0.25", subject, 0.25)
    share = dropout.check_dropout_share
    if claimed:
        yield planned(share, "p0.25-p0.5", subject, 0.25, 0.5)
    else:
        yield not_claimed(share, "dropout is not claimed")
    check = dropout.check_checkpointing
    if not subject.backward:
        yield not_claimed(check, "gradients are not claimed")
    else:
        for probability in (0.0, 0.25) if claimed else (0.0,):
            yield planned(check, f"p{probability:g}", subject, probability)


SHAPES: Mapping[str, Shape] = {
    "square": SQUARE,
    "long_odd": LONG_ODD,
    "kv_longer": RECTANGULAR,
    "kv_longer-same_width": RECTANGULAR.of(value_dim=RECTANGULAR.head_dim),
    "q_longer": RECTANGULAR.of(queries=7, keys=5),
    "4over2": SQUARE.of(heads=4, kv_heads=2),
    "one_query": SQUARE.of(queries=1),
}
"""Shapes at which members differ in who takes them."""


def _members(subject: VariantSubject) -> Iterator[Check]:
    check = members.check_members_agree
    if not isinstance(subject.at(subject.fit(SQUARE)).module(), Operation):
        yield not_claimed(check, "it is no operation")
        return
    taken = sorted(subject.capabilities.masks)
    groups = ((), *((part,) for part in taken), *itertools.combinations(taken, 2))
    for name, shape in SHAPES.items():
        for parts in groups:
            label = "-".join((name, "+".join(parts) or "plain"))
            if shape.queries > shape.keys and set(parts) & {"causal", "window", "alibi"}:
                continue
            yield planned(check, label, subject, shape, parts, may_refuse=True)


GROUPS = (
    _scale,
    _ranges,
    _autocast,
    _hull,
    _maps,
    _symmetry,
    _payload,
    _dropout,
    _members,
)
"""In the order in which they are asked."""
