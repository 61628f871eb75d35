"""The checks of saving, copying, training and of what runs at the same time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from torch import nn

from polyattn.testing.checks import life_cycle, threads
from polyattn.testing.generate.networks import why_not_pickled
from polyattn.testing.planned import Check, not_claimed, planned
from polyattn.testing.subjects.sequence import Subject
from polyattn.testing.subjects.variant import VariantSubject
from polyattn.testing.tools.cases import SQUARE


def life_cycle_checks(subject: Subject) -> Iterator[Check]:
    """Group K."""
    instance = subject.at(subject.fit(SQUARE))
    if instance.module() is not None:
        yield planned(life_cycle.check_state_dict_roundtrip, "", subject)
        yield _parameters(subject, instance.has_parameters)
    if isinstance(subject, VariantSubject):
        yield from copies(
            life_cycle.check_deepcopy_pickle_after_forward, subject, instance.module()
        )
    yield from _inference(subject)
    yield planned(threads.check_threads, "", subject, reports=True, extended=True)


def copies(
    check: Callable[..., None], subject: object, module: nn.Module | None, /, *arguments: object
) -> Iterator[Check]:
    """A copy and a pickle; the pickle is left out where that is not the subject's own fault."""
    for how in life_cycle.COPIES:
        reason = why_not_pickled(module) if how == "pickle" and module is not None else ""
        if reason:
            left_out = not_claimed(check, reason)
            yield dataclasses.replace(left_out, id=f"{left_out.id}[{how}]")
        else:
            yield planned(check, how, subject, *arguments, how)


def _parameters(subject: Subject, has_parameters: bool) -> Check:
    check = life_cycle.check_all_parameters_get_grad
    if not has_parameters:
        return not_claimed(check, "it has no parameters")
    if not subject.backward:
        return not_claimed(check, "gradients are not claimed")
    return planned(check, "", subject)


def _inference(subject: Subject) -> Iterator[Check]:
    then_train = life_cycle.check_inference_mode_then_train
    of_state = life_cycle.check_state_of_inference_mode
    if not subject.backward:
        for check in (then_train, of_state):
            yield not_claimed(check, "gradients are not claimed")
        return
    yield planned(then_train, "", subject)
    if subject.capabilities.state == "none":
        yield not_claimed(of_state, "no decoding state is claimed")
        return
    for tokens in (1, 3):
        yield planned(of_state, f"{tokens}_tokens", subject, tokens)
