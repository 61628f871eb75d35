"""D. Masks that say nothing, or two things, or belong to another call."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from polyattn.errors import MaskError
from polyattn.mask import Mask
from polyattn.testing.results import proves
from polyattn.testing.subjects.mask_meanings import MaskSubject
from polyattn.testing.tools.raising import must_raise

Conflict = Callable[[type[Mask]], object]
CONFLICTS: Mapping[str, Conflict] = {
    "two_alibis": lambda m: m.alibi(torch.ones(2)) & m.alibi(torch.ones(2)),
    "paddings_of_two_batches": lambda m: m.padding(_open(2, 4)) & m.padding(_open(3, 4)),
    "paddings_of_two_lengths": lambda m: m.padding(_open(2, 4)) & m.padding(_open(2, 5)),
    "ids_of_two_lengths": lambda m: m.segments(_zeros(2, 4)) & m.segments(_zeros(2, 5)),
    "a_tensor": lambda m: m.causal() & _open(4, 4),
    "a_tensor_first": lambda m: _open(4, 4) & m.causal(),
    "causal_with_more_queries": lambda m: m.causal().keep(5, 4),
    "window_with_more_queries": lambda m: m.window(2, 0).keep(5, 4),
    "alibi_with_more_queries": lambda m: m.alibi(torch.ones(3)).logit_bias(5, 4),
    "ids_with_more_queries": lambda m: m.segments(_zeros(2, 4)).keep(5, 4),
    "padding_of_another_length": lambda m: m.padding(_open(2, 4)).keep(4, 5, 2, 3),
    "padding_of_another_batch": lambda m: m.padding(_open(2, 4)).keep(4, 4, 3, 3),
    "padding_of_one_sample": lambda m: m.padding(_open(1, 4)).keep(4, 4, 3, 3),
    "slopes_of_other_heads": lambda m: m.alibi(torch.ones(2)).check(2, 3, 4, 4),
    "dense_of_another_length": lambda m: m.dense(_open(4, 4)).keep(4, 5, 2, 3),
    "dense_of_another_head": lambda m: m.dense(_open(2, 2, 4, 4)).keep(4, 4, 2, 3),
    "dense_of_rank_three": lambda m: m.dense(_open(2, 4, 4)),
    "dense_of_numbers": lambda m: m.dense(torch.ones(4, 4)),
    "padding_of_integers": lambda m: m.padding(_zeros(2, 4)),
    "bias_of_bools": lambda m: m.bias(_open(4, 4)),
    "bias_of_another_length": lambda m: m.bias(torch.ones(4, 4)).logit_bias(4, 5),
    "query_ids_of_another_length": lambda m: m.segments(_zeros(2, 3), _zeros(2, 5)).keep(4, 5),
    "ids_of_floats": lambda m: m.segments(torch.ones(2, 4)),
    "documents_of_two_totals": lambda m: m.documents([[1, 2], [4]]),
    "an_empty_document": lambda m: m.documents([[0, 3]]),
    "a_window_without_limits": lambda m: m.window(None, None),
    "a_negative_window": lambda m: m.window(-1, 0),
    "a_negative_prefix": lambda m: m.causal(prefix=-1),
    "a_length_beyond_the_total": lambda m: m.lengths([3, 9], 5),
    "lengths_of_floats": lambda m: m.lengths([2.0, 3.0]),  # type: ignore[list-item]
    "negative_lengths": lambda m: m.lengths([2, -1]),
    "where_without_sizes": lambda m: m.where(lambda b, h, i, j: i >= j).keep(4, 4),
    "where_of_numbers": lambda m: m.where(lambda b, h, i, j: i - j).keep(4, 4, 2, 3),
    "where_of_too_few_arguments": lambda m: m.where(
        lambda i, j: i >= j  # type: ignore[arg-type, misc]
    ).keep(4, 4, 2, 3),
    "where_of_no_function": lambda m: m.where(_open(4, 4)),  # type: ignore[arg-type]
    "an_unknown_part": lambda m: m.causal().only("casual"),
    "rows_of_bools": lambda m: m.causal().rows(_open(4), 4, 4),
}
"""What says nothing, or two things, or belongs to another call."""


def _open(*size: int) -> Tensor:
    return torch.ones(size, dtype=torch.bool)


def _zeros(*size: int) -> Tensor:
    return torch.zeros(size, dtype=torch.long)


@proves(
    "What contradicts itself or the call raises MaskError: nothing is guessed, cut or broadcast.",
    causes=(
        "a size that broadcasting stretches, or a slice that shortens in silence",
        "a check that is left to torch, whose error says nothing of masks",
    ),
)
def check_mask_conflicts_raise(subject: MaskSubject, case: str) -> None:
    must_raise(
        lambda: CONFLICTS[case](subject.masks),
        MaskError,
        asked=case.replace("_", " "),
        expected="MaskError",
    )
