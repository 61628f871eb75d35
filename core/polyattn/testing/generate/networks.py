"""The checks of whole modules and language models: what was found out is proven."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch.nn.utils import parametrize

from polyattn.testing.checks import language_models as models
from polyattn.testing.checks import module_attention as attention
from polyattn.testing.checks import module_gradients as gradients
from polyattn.testing.checks import module_life as life
from polyattn.testing.checks import modules
from polyattn.testing.planned import Check, not_claimed, planned
from polyattn.testing.subjects.networks import ModelSubject, ModuleSubject, Network

Asked = Callable[..., None]


def network_checks(subject: Network, module: object) -> Iterator[Check]:
    """Every check that is asked of it, in the order in which they tell most; ``module``: one."""
    yield from _calls(subject)
    yield from _hearing(subject)
    if isinstance(subject, ModelSubject):
        yield from _model(subject)
    if isinstance(module, nn.Module):
        yield from _life(subject, module)
        return
    for check in (
        life.check_module_parameters_get_grad,
        life.check_module_state_dict_roundtrip,
        life.check_module_deepcopy_pickle,
        life.check_module_train_equals_eval,
    ):
        yield not_claimed(check, "it is no nn.Module")


def _calls(subject: Network) -> Iterator[Check]:
    lengths = dict.fromkeys(subject.fit(n) for n in (6, 5, 13, 2))
    for batch, length in zip((2, 3, 1, 4), lengths, strict=False):
        yield planned(modules.check_module_output, f"{batch}x{length}", subject, batch, length)
    for check in (
        modules.check_module_eval_deterministic,
        modules.check_module_inputs_not_mutated,
        modules.check_module_global_state_untouched,
        modules.check_module_call_is_stateless,
        modules.check_module_batch_independence,
    ):
        yield planned(check, "", subject)
    if subject.fit(1) == 1:
        yield planned(modules.check_module_length_one, "", subject)
    else:
        reason = f"it takes multiples of {subject.step} alone"
        yield not_claimed(modules.check_module_length_one, reason)
    for layout in modules.LAYOUTS if isinstance(subject, ModuleSubject) else modules.LAYOUTS[:1]:
        yield planned(modules.check_module_noncontiguous, layout, subject, layout)


def _hearing(subject: Network) -> Iterator[Check]:
    """Who hears whom."""
    if isinstance(subject, ModelSubject) and subject.vocab < 2:
        yield not_claimed(attention.check_module_hears, "there is one id alone")
    else:
        yield planned(attention.check_module_hears, "", subject)
    by_gradient = attention.check_module_causality_by_gradient
    causal: list[Asked] = [attention.check_module_causality_by_perturbation]
    if subject.any_length:
        causal.append(attention.check_module_prefix_consistency)
    if isinstance(subject, ModuleSubject):
        causal.append(by_gradient)
    for check in causal:
        if subject.causal:
            yield planned(check, "", subject)
        else:
            yield not_claimed(check, _why_not_causal(subject))
    padding: list[Asked] = [attention.check_module_padding_equals_truncation]
    padding.append(attention.check_module_fully_masked_rows)
    if isinstance(subject, ModelSubject):
        padding.append(attention.check_lm_left_padding)
    # Whoever counts positions by the slot, and cannot be told others, may pad at the end alone.
    counts = subject.manner.positions is None
    for check in padding:
        if subject.manner.padding is None:
            yield not_claimed(check, "no padding is taken; where it is: --mask-arg NAME")
        elif not subject.any_length:
            yield not_claimed(check, f"it takes a length of {subject.step} alone")
        else:
            reports = counts and check is attention.check_lm_left_padding
            yield planned(check, "", subject, reports=reports)
    if isinstance(subject, ModuleSubject):
        if subject.takes_context and subject.any_length:
            yield planned(attention.check_module_context, "", subject)
        else:
            yield not_claimed(attention.check_module_context, "it attends to itself alone")


def _why_not_causal(subject: Network) -> str:
    if isinstance(subject, ModelSubject):
        return "it is not meant to be causal"
    return "it is not causal; where it is meant to be: --causal"


def _model(subject: ModelSubject) -> Iterator[Check]:
    if not subject.causal:
        yield not_claimed(models.check_lm_causality_by_gradient, _why_not_causal(subject))
    elif subject.embeds:
        yield planned(models.check_lm_causality_by_gradient, "", subject)
    else:
        reason = "no nn.Embedding was found that the ids go through"
        yield not_claimed(models.check_lm_causality_by_gradient, reason)
    if subject.caching is None or not subject.causal:
        reason = "no cache was found; where there is one: --cache-arg NAME"
        reason = reason if subject.causal else _why_not_causal(subject)
        yield not_claimed(models.check_lm_cached_decoding, reason)
        yield not_claimed(models.check_lm_cache_isolation, reason)
    else:
        for label, chunks in models.CHUNKS.items():
            if subject.fit(sum(chunks)) == sum(chunks):
                yield planned(models.check_lm_cached_decoding, label, subject, chunks)
        yield planned(models.check_lm_cache_isolation, "", subject)
    if subject.any_length:
        yield planned(models.check_lm_longest, "", subject)
    if subject.limit is None:
        reason = "no limit of its length was found"
        yield not_claimed(models.check_lm_refuses_clearly, reason)
    else:
        yield planned(models.check_lm_refuses_clearly, "", subject, reports=True)


def _life(subject: Network, module: nn.Module) -> Iterator[Check]:
    """What is asked of modules: training, saving, copying."""
    learns = any(parameter.requires_grad for parameter in module.parameters())
    if learns:
        yield planned(life.check_module_parameters_get_grad, "", subject)
    else:
        yield not_claimed(life.check_module_parameters_get_grad, "it has no parameters")
    yield planned(life.check_module_state_dict_roundtrip, "", subject)
    for how in life.COPIES:
        reason = why_not_pickled(module) if how == "pickle" else ""
        if reason:
            check = not_claimed(life.check_module_deepcopy_pickle, reason)
            yield dataclasses.replace(check, id=f"{check.id}[{how}]")
        else:
            yield planned(life.check_module_deepcopy_pickle, how, subject, how)
    yield planned(life.check_module_inference_mode_then_train, "", subject)
    if subject.silenced:
        yield planned(life.check_module_train_equals_eval, "", subject)
    else:
        reason = "in training it is random, or normalises by the batch"
        yield not_claimed(life.check_module_train_equals_eval, reason)
    if subject.weights_flag:
        yield planned(life.check_module_weights_change_nothing, "", subject)
    else:
        yield not_claimed(life.check_module_weights_change_nothing, "it offers no weights")
    yield planned(modules.check_module_double_precision, "", subject, reports=True)
    if isinstance(subject, ModuleSubject):
        if subject.wide:
            yield planned(gradients.check_module_gradcheck, "", subject)
            straight = gradients.check_module_nothing_straight_through
            yield planned(straight, "", subject, reports=True)
        else:
            yield not_claimed(gradients.check_module_gradcheck, "it does not compute in float64")


def why_not_pickled(module: nn.Module) -> str:
    """Where it is not its own fault; else nothing."""
    if "<locals>" in type(module).__qualname__:
        return "pickle finds no class that a function made"
    if isinstance(module, torch.jit.ScriptModule):
        return "torch pickles no scripted module"
    if any(parametrize.is_parametrized(part) for part in module.modules()):
        return "torch pickles no parametrized module"
    return ""
