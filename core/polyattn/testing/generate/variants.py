"""From claims to checks: what a subject claims is proven, what it does not claim is listed."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from polyattn.testing.checks import autograd, contract, heads, local, values
from polyattn.testing.checks import independence as independence_checks
from polyattn.testing.checks.operators import check_custom_operators
from polyattn.testing.checks.refusals import check_unsupported_raises, name_of, unclaimed
from polyattn.testing.generate.approximate import approximate_checks
from polyattn.testing.generate.asking import (
    learnable,
    may_refuse,
    shapes,
    single_parts,
    without_definition,
)
from polyattn.testing.generate.claims import claimed_properties
from polyattn.testing.generate.decoding import further_decoding_checks
from polyattn.testing.generate.derivatives import derivative_checks
from polyattn.testing.generate.exactness import exactness_checks
from polyattn.testing.generate.extended import extended_checks
from polyattn.testing.generate.grouped import grouped_length_checks
from polyattn.testing.generate.life_cycle import life_cycle_checks
from polyattn.testing.generate.maps import feature_maps
from polyattn.testing.generate.masks import (
    causality,
    causality_by_gradient,
    decoding,
    masks,
)
from polyattn.testing.generate.values import further_value_checks
from polyattn.testing.generate.widths import hidden_widths
from polyattn.testing.generate.windows import further_window_checks
from polyattn.testing.planned import Check, not_claimed, planned
from polyattn.testing.subjects.feature_maps import FeatureMapSubject
from polyattn.testing.subjects.sequence import Subject
from polyattn.testing.subjects.variant import AnySubject, VariantSubject
from polyattn.testing.tools.cases import (
    LONG_MEMORY,
    LONG_MEMORY_EVEN,
    LONG_ODD,
    RECTANGULAR,
    SINGLE,
    SQUARE,
    TINY,
    TINY_EVEN,
    Shape,
)


def iter_checks(subject: AnySubject) -> Iterator[Check]:
    """Every check that the subject's claims ask for, in the order in which they tell most.

    Ids are unique. A property that is not claimed is yielded once, with the reason.
    """
    if isinstance(subject, FeatureMapSubject):
        yield from feature_maps(subject)
        yield from hidden_widths(subject)
        return
    for group in (
        output_checks,
        value_checks,
        contract_checks,
        independence,
        causality_by_gradient,
        masks,
        causality,
        decoding,
        further_decoding_checks,
        local_checks,
        heads_checks,
        grouped_length_checks,
        claimed_properties,
        further_value_checks,
        further_window_checks,
        autograd_checks,
        derivative_checks,
        approximate_checks,
        exactness_checks,
        life_cycle_checks,
        extended_checks,
    ):
        yield from group(subject)


def output_checks(subject: Subject) -> Iterator[Check]:
    for name, shape in shapes(subject, RECTANGULAR, SQUARE, SINGLE).items():
        for dtype in sorted(subject.dtypes, key=str):
            yield planned(
                contract.check_output_shape_dtype_device,
                f"{name}-{name_of(dtype)}",
                subject,
                shape,
                dtype,
            )


def contract_checks(subject: Subject) -> Iterator[Check]:
    """After the values: whoever computes something else fails many of these too."""
    yield planned(contract.check_global_state_untouched, "", subject)
    yield planned(contract.check_eval_deterministic_and_rng_neutral, "", subject)
    for function in (contract.check_inputs_not_mutated, contract.check_call_is_stateless):
        yield planned(function, "plain", subject)
        for part in single_parts(subject):
            yield planned(function, part, subject, part, may_refuse=may_refuse(subject, part))
    if isinstance(subject, VariantSubject):
        yield planned(check_custom_operators, "plain", subject)
        for part in single_parts(subject):
            yield planned(check_custom_operators, part, subject, (part,))
        yield planned(contract.check_backend_really_used, "", subject)
        alone = contract.check_reference_stands_alone
        yield planned(alone, "plain", subject)
        for part in single_parts(subject):
            yield planned(alone, part, subject, (part,))
        for claim in unclaimed(subject):
            yield planned(check_unsupported_raises, claim, subject, claim)


def value_checks(subject: Subject) -> Iterator[Check]:
    """The numbers themselves: by the definition, by what rows sum to, at sizes of zero and one."""
    if subject.has_definition:
        yield from _by_definition(subject)
    else:
        yield without_definition(subject, values.check_matches_reference)
        yield without_definition(subject, values.check_low_precision_error)
    yield from sums(subject)
    yield from _degenerate(subject)


def _by_definition(subject: Subject) -> Iterator[Check]:
    check = values.check_matches_reference
    long = (LONG_ODD, LONG_MEMORY, LONG_MEMORY_EVEN)
    for name, shape in shapes(subject, RECTANGULAR, SQUARE, *long).items():
        for seed in (0,) if name.startswith("long") else (0, 1):
            yield planned(check, f"{name}-seed{seed}", subject, shape, (), seed)
        for part in single_parts(subject):
            refused = may_refuse(subject, part)
            yield planned(check, f"{name}-{part}", subject, shape, (part,), may_refuse=refused)
    for part in learnable(subject):
        label = f"learned_{part}"
        yield planned(check, label, subject, SQUARE, (part,), learns_mask=True, may_refuse=True)
    if subject.softmax:
        yield planned(values.check_matches_loop, "plain", subject)
        for part in single_parts(subject):
            refused = may_refuse(subject, part)
            yield planned(values.check_matches_loop, part, subject, (part,), may_refuse=refused)
    for dtype in sorted(subject.dtypes - {torch.float64}, key=str):
        yield planned(values.check_low_precision_error, name_of(dtype), subject, dtype)


def _degenerate(subject: Subject) -> Iterator[Check]:
    for case, shape in values.DEGENERATE.items():
        fits = subject.fit(shape) == shape
        ordered = subject.capabilities.requires & {"causal", "window"}
        unsaid = subject.raw_masks and case == "no_keys"
        if fits and not unsaid and not (ordered and shape.queries > shape.keys):
            yield planned(
                values.check_degenerate_sizes,
                case,
                subject,
                case,
                may_raise=subject.raw_masks and case in values.UNUSUAL,
                may_refuse=shape.queries > shape.keys,
            )


def sums(subject: Subject) -> Iterator[Check]:
    check = values.check_rows_sum_to_one
    if not subject.capabilities.rows_sum_to_one:
        yield not_claimed(check, "rows_sum_to_one is not claimed")
        return
    yield planned(check, "plain", subject)
    for part in single_parts(subject):
        yield planned(check, part, subject, part)
    for level in (-8.0, -20.0, 8.0):
        yield planned(check, f"around{level:g}", subject, level=level)
    if torch.float32 in subject.dtypes:
        yield planned(check, "around-20-float32", subject, level=-20.0, dtype=torch.float32)


def independence(subject: Subject) -> Iterator[Check]:
    batch = independence_checks.check_batch_independence
    for name, shape in shapes(subject, RECTANGULAR, SQUARE).items():
        yield planned(batch, name, subject, shape)
    if "padding" in subject.capabilities.masks:
        yield planned(batch, "padding", subject, RECTANGULAR, padded=True)
    yield planned(independence_checks.check_head_independence_and_order, "", subject)


def local_checks(subject: Subject) -> Iterator[Check]:
    check = local.check_window_support_by_gradient
    claimed = "window" in subject.capabilities.masks
    if not subject.backward or not (claimed or subject.promised_window):
        yield not_claimed(check, "no window is claimed")
    elif claimed:
        causal = "causal" in subject.capabilities.requires
        for left, right in ((2, 0), (0, 3), (2, 1), (0, 0), (1, None)):
            if not (causal and right != 0):
                label = f"left{left}-right{'None' if right is None else right}"
                yield planned(check, label, subject, left, right, 12, may_refuse=right is None)
        yield planned(check, "left9-right0-long", subject, 9, 0, 37)
    if subject.backward and subject.promised_window:
        left, right = subject.promised_window
        for length in (12, 37, 70):
            label = f"options-length{length}"
            yield planned(check, label, subject, left, right, length, by="options")
    for length in (2, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 193, 257):
        if length < 200 or subject.capabilities.masks:
            yield from _length(subject, length)


def _length(subject: Subject, length: int) -> Iterator[Check]:
    claims = subject.capabilities
    fitted = subject.fit(Shape(name="", queries=length, keys=length)).keys
    if fitted != length:
        return
    check = local.check_length_not_multiple_of_block
    if claims.causal == "yes":
        yield planned(check, f"length{length}-causal", subject, length, ("causal",))
    yield planned(check, f"length{length}", subject, length)
    if length not in MASKED_LENGTHS or not subject.has_definition:
        return
    for part in single_parts(subject):
        if part != "causal":
            yield planned(check, f"length{length}-{part}", subject, length, (part,))


MASKED_LENGTHS = (129, 257)
"""Long enough for code that takes many blocks at once; with every kind of mask."""


def heads_checks(subject: Subject) -> Iterator[Check]:
    check = heads.check_gqa_equals_repeated_kv
    if subject.capabilities.grouped_heads == "no":
        yield not_claimed(check, "grouped heads are not claimed")
        return
    for count, kv_heads in ((4, 2), (6, 2), (3, 1)):
        yield planned(check, f"{count}over{kv_heads}", subject, count, kv_heads)


def autograd_checks(subject: Subject) -> Iterator[Check]:
    check = autograd.check_gradcheck
    if not subject.backward or torch.float64 not in subject.dtypes:
        yield not_claimed(check, "gradients in float64 are not claimed")
    else:
        yield planned(check, "plain", subject)
        for part in single_parts(subject):
            refused = may_refuse(subject, part)
            yield planned(check, part, subject, (part,), may_refuse=refused)
        for part in learnable(subject):
            label = f"learned_{part}"
            yield planned(check, label, subject, (part,), learns_mask=True, may_refuse=True)
    twice = subject.capabilities.devices.get(subject.place.name)
    if twice is None or not twice.double_backward or torch.float64 not in subject.dtypes:
        yield not_claimed(autograd.check_double_backward, "double_backward is not claimed")
    else:
        # Of one width, some code takes another path than of two.
        for name, shape in shapes(subject, TINY, TINY_EVEN).items():
            yield planned(autograd.check_double_backward, name, subject, shape)
            if "causal" in single_parts(subject):
                label = f"{name}-causal"
                yield planned(autograd.check_double_backward, label, subject, shape, ("causal",))
    for layout in (*autograd.LAYOUTS, "grad_out_expanded"):
        yield planned(autograd.check_noncontiguous, layout, subject, layout)
    for alone in ("q", "k", "v"):
        label = f"every_second-{alone}"
        yield planned(autograd.check_noncontiguous, label, subject, "every_second", alone)
