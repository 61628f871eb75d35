"""Which of the usual causes it most likely is, where a module or a model has failed a check.

Nothing here is proven: a few more calls are made, and a pattern in what moves is named. What fits
no pattern is left to the list of usual causes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor, nn

from polyattn.testing.doors.causes import DoorFailure
from polyattn.testing.doors.network import LIKELY, NetworkDoor
from polyattn.testing.planned import Check
from polyattn.testing.process.contained import TimeUp, contained
from polyattn.testing.process.settings import settings_restored
from polyattn.testing.subjects.networks import ModelSubject, ModuleSubject, Network, Running

MOVED = 1e-6
"""Of the largest output: what moves by less is rounding."""
WEAK = 0.05
"""Beside what is heard rightly: what moves by less does not come through the attention weights."""
FILL = "a number in place of -inf (-1e4, -100)"
LOUD = 1e4
"""At this size a key wins against any number that stands for -inf."""


class Suspecting(NetworkDoor):
    """An opened door whose failures name the cause that is most likely, where one is seen."""

    def checks(self) -> Iterator[Check]:
        for check in super().checks():
            yield check if self.subject is None else _suspecting(check, self.subject)


def _suspecting(check: Check, subject: Network) -> Check:
    look = SUSPECTS.get(check.name)
    if look is None:
        return check

    def run() -> None:
        try:
            check.run()
        except DoorFailure as failure:
            likely = _seen(look, subject)
            if not likely:
                raise
            causes = (f"{LIKELY}{likely}", *failure.property.causes)
            property = dataclasses.replace(failure.property, causes=causes)
            raise DoorFailure(failure.check, property, failure.seen) from failure.__cause__

    return dataclasses.replace(check, run=run)


def _seen(look: Callable[[Network], str], subject: Network) -> str:
    """What is suspected; nothing where the calls raise or take too long."""
    try:
        with settings_restored(), contained():
            return look(subject)
    except (Exception, TimeUp):
        return ""


def of_causality(subject: Network) -> str:
    """Why outputs hear what comes later: by who hears whom, and how loudly."""
    heard = _influence(subject, subject.fit(8))
    moved, later = heard > MOVED, torch.ones_like(heard).triu(1).bool()
    if not bool(moved[later].any()):
        if isinstance(subject, ModuleSubject) and _heard_when_loud(subject):
            return f"{FILL}: later positions are heard where they are loud"
        return ""
    if not bool(moved.tril(-1).any()):
        return "the mask turned round: outputs hear later positions, and none before"
    if heard[later].max() < WEAK * heard.tril(-1).max():
        return (
            "a mean, a norm or a sum over all positions, or a small number (-10) in place of -inf: "
            "later ones are heard, but weakly"
        )
    if bool(moved[later].all()):
        return "no causal mask at all: every output hears every later position"
    return _edge(moved)


def _edge(moved: Tensor) -> str:
    """Which edge a mask has in place of the diagonal; nothing where it has none."""
    at = torch.arange(len(moved))
    last = (moved * (at + 1)).amax(1) - 1
    if not torch.equal(moved, at <= last[:, None]):
        return ""
    for layers in range(1, len(moved) - 1):
        if torch.equal(last, (at + layers).clamp(max=len(moved) - 1)):
            where = "the next one" if layers == 1 else f"{layers} more, one for each layer"
            return f"the mask is off by one (diagonal=2 in place of 1): each output hears {where}"
    if torch.equal(last[last], last):
        return "causal by blocks only: each output hears its block to the end"
    return ""


def of_padding(subject: Network) -> str:
    """Why padding is heard: as loudly as the rest, weakly, or only where something is loud."""
    running, x = subject.build(), subject.draw(2, subject.fit(6))
    real = x.shape[1] - 2
    keep = torch.ones(x.shape[:2], dtype=torch.bool)
    keep[:, real:] = False

    def moves(x: Tensor, where: slice, rows: slice, loud: float = 1.0) -> float:
        other = subject.changed(x, where, loud=loud)
        before, after = (running.quiet(some, keep=keep)[:, rows] for some in (x, other))
        return _relative(after - before, before)

    padding, rows = slice(real, None), slice(0, real)
    plain = moves(x, padding, rows)
    if plain > WEAK * moves(x, slice(0, 1), slice(1, real)):
        return (
            "a layer without the mask, or heads merged without a transpose: padding is heard as "
            "what is real"
        )
    if plain > MOVED:
        return (
            "a mean or a norm over padding, too, or a small number (-10) in place of -inf: "
            "padding is heard at any size, but weakly"
        )
    if isinstance(subject, ModuleSubject):
        shout = subject.changed(x, slice(0, None), seed=8, loud=LOUD)
        if max(moves(some, padding, rows, LOUD) for some in (x, shout)) > MOVED:
            return f"{FILL}: padding is heard where the inputs are loud"
    return ""


def of_batch(subject: Network) -> str:
    """Why a sample hears others: the batch taken for positions, statistics of it, or a view."""
    running, x = subject.build(), subject.draw(3, subject.fit(6))
    before = running.quiet(x)
    other = x.clone()
    other[1] = subject.changed(x, slice(2, 3))[1]
    moved = (running.quiet(other) - before).abs().amax(-1) > MOVED * before.abs().max()
    here = torch.zeros(x.shape[1], dtype=torch.bool)
    here[2] = True
    if not bool(moved[[0, 2]].any()):
        return ""
    if torch.equal(moved, here.expand_as(moved)):
        return "the batch is taken for the sequence: a sample hears the others, and not itself"
    kinds = _of_kind(running, nn.modules.batchnorm._BatchNorm)
    if kinds:
        return f"statistics of the batch, in evaluation too: {kinds[0]}"
    spread = (here, torch.ones_like(here), here.cumsum(0).bool())
    if torch.equal(moved[0], moved[2]) and any(torch.equal(moved[0], x) for x in spread):
        return "a mean, a maximum or a norm over the batch: every other sample is heard alike"
    return "a view() or reshape() that mixes samples: some others are heard, in some positions"


def of_cache(subject: Network) -> str:
    """Why decoding differs: which of the tokens in the cache a new one hears."""
    assert isinstance(subject, ModelSubject)
    caching = subject.caching
    assert caching is not None, "asked only where it decodes with a cache"
    if leak := _of_the_whole_call(subject):
        return leak
    running, ids = subject.build(), subject.draw(1, 6)

    def last(ids: Tensor) -> Tensor:
        with torch.no_grad():
            _, cache = caching.decode(running, ids[:, :5])
            return caching.decode(running, ids[:, 5:], cache)[0][:, -1]

    before = last(ids)
    heard = []
    for at in range(5):
        after = last(subject.changed(ids, slice(at, at + 1)))
        heard.append(_relative(after - before, before) > MOVED)
    if all(heard):
        return "positions: every cached token is heard, so their places are wrong, not the mask"
    if not any(heard):
        return "the cache is not read: a new token hears none of those before it"
    if heard[0] and not any(heard[1:]):
        return "a causal mask of the new tokens alone: aligned at the first key, the rest is closed"
    if not heard[0] and all(heard[1:]):
        return "off by one: the first cached token is lost"
    if not heard[-1] and all(heard[:-1]):
        return "off by one: the newest cached token is lost"
    return ""


def of_isolation(subject: Network) -> str:
    """Why generations differ: often decoding is wrong without another one beside it."""
    assert isinstance(subject, ModelSubject)
    caching = subject.caching
    assert caching is not None, "asked only where it decodes with a cache"
    if leak := _of_the_whole_call(subject):
        return leak
    running, ids = subject.build(), subject.draw(2, 7)
    whole = running.quiet(ids)[:, 6:]
    with torch.no_grad():
        _, cache = caching.decode(running, ids[:, :6])
        alone, _ = caching.decode(running, ids[:, 6:], cache)
    if _relative(alone - whole, whole) > MOVED:
        return "no other generation, but decoding itself: see check_lm_cached_decoding"
    return ""


def _of_the_whole_call(subject: Network) -> str:
    """Whether later ids are heard without a cache, too: then decoding cannot agree with that."""
    heard = _influence(subject, subject.fit(8)).triu(1)
    if not bool((heard > MOVED).any()):
        return ""
    return f"not the cache, but the whole call: {of_causality(subject) or 'later ids are heard'}"


SUSPECTS: Mapping[str, Callable[[Network], str]] = {
    "check_module_causality_by_perturbation": of_causality,
    "check_module_causality_by_gradient": of_causality,
    "check_module_prefix_consistency": of_causality,
    "check_lm_causality_by_gradient": of_causality,
    "check_lm_longest": of_causality,
    "check_module_padding_equals_truncation": of_padding,
    "check_module_batch_independence": of_batch,
    "check_lm_cached_decoding": of_cache,
    "check_lm_cache_isolation": of_isolation,
}
"""The checks for whose failures something more is tried."""


def _influence(subject: Network, length: int) -> Tensor:
    """How far each output moves when a position is changed: (outputs, positions)."""
    running, x = subject.build(), subject.draw(1, length)
    before = running.quiet(x)
    columns = []
    for at in range(length):
        after = running.quiet(subject.changed(x, slice(at, at + 1)))
        columns.append((after - before).abs().amax(-1)[0])
    return torch.stack(columns, 1) / before.abs().max()


def _heard_when_loud(subject: ModuleSubject) -> bool:
    """Whether a first output hears what comes later, where that is loud, or all of it is."""
    running, x = subject.build(), subject.draw(8, subject.fit(8))

    def moves(x: Tensor) -> float:
        before, other = running.quiet(x), subject.changed(x, slice(1, None), loud=LOUD)
        return _relative((running.quiet(other) - before)[:, :1], before[:, :1])

    # What overflows at such sizes says nothing of fills.
    return any(MOVED < moved < torch.inf for moved in (moves(x), moves(x * LOUD)))


def _relative(difference: Tensor, beside: Tensor) -> float:
    """The largest of a difference; what is no number counts as endless, beside zeros, too."""
    if not bool(difference.any()):
        return 0.0
    return float((difference.abs().max() / beside.abs().max()).nan_to_num(torch.inf))


def _of_kind(running: Running, kind: type[nn.Module]) -> list[str]:
    module = running.function
    parts = module.named_modules() if isinstance(module, nn.Module) else ()
    return [
        f"{type(part).__name__} in {name or 'it'}" for name, part in parts if isinstance(part, kind)
    ]
