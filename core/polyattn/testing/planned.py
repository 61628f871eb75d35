"""One check with its parameters: an id, and what to do."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from enum import StrEnum
from typing import ParamSpec

from polyattn.testing.results import Status

P = ParamSpec("P")


class Trait(StrEnum):
    """What is true of a check whatever it is asked of; said where the check is defined."""

    ON_THE_CPU = "on the CPU"
    """It measures the CPU's memory, or reaches the module by ways of its own: run there alone."""
    PLAIN_CALL = "plain call"
    """It asks for an answer and no more: where none comes, every other failure follows from it."""
    COMPARES_NOTHING = "compares nothing"
    """It can be asked of code that answers otherwise each time, too."""
    MANNERS = "manners"
    """It asks how a call behaves, not what it computes: no wrong formula explains that it fails."""
    AGAINST_SOFTMAX = "against softmax"
    """It holds of softmax attention: code that is meant to be another kind is spared it."""
    WHAT_TRUE_MEANS = "what True means"
    """It asks what a mask closes: who means the other thing by True can say so."""
    FINDS_MEMORY = "finds memory"
    """It asks whether a call leaves something behind: worth asking of code that is known to."""


def having(*traits: Trait) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """Mark a check with its traits, for all that plan it."""

    def decorate(function: Callable[P, None]) -> Callable[P, None]:
        function.__dict__["traits"] = frozenset(traits)
        return function

    return decorate


def _traits_of(function: Callable[..., None]) -> frozenset[Trait]:
    found: frozenset[Trait] = function.__dict__.get("traits", frozenset())
    return found


@dataclasses.dataclass(frozen=True)
class Check:
    """One check of one subject, ready to run. ``id`` holds its parameters."""

    id: str
    run: Callable[[], None]
    withheld: Status | None = None
    """NOT_CLAIMED or NOT_RUN where it is not run, for this reason:"""
    reason: str = ""
    may_refuse: bool = False
    """A refusal (Unsupported) is an answer: a pair or a condition, which nothing claims."""
    extended: bool = False
    """It takes seconds, and is run where it is asked for."""
    may_raise: bool = False
    """Any exception of the code is an answer: it claims nothing of the kind."""
    reports: bool = False
    """The property is a result, which nobody claims: where it does not hold, that is said."""
    traits: frozenset[Trait] = frozenset()

    @property
    def name(self) -> str:
        """Without its parameters."""
        return self.id.partition("[")[0]


def planned(
    function: Callable[..., None],
    label: str = "",
    /,
    *arguments: object,
    may_refuse: bool = False,
    may_raise: bool = False,
    extended: bool = False,
    reports: bool = False,
    **parameters: object,
) -> Check:
    """``function(*arguments, **parameters)`` under the id ``name[label]``."""
    return Check(
        id=f"{function.__name__}[{label}]" if label else function.__name__,
        run=lambda: function(*arguments, **parameters),
        may_refuse=may_refuse,
        may_raise=may_raise,
        extended=extended,
        reports=reports,
        traits=_traits_of(function),
    )


def not_run(check: Check, reason: str) -> Check:
    """The same check, listed and not run. One that is withheld already keeps its reason."""
    if check.withheld is not None:
        return check
    return dataclasses.replace(check, withheld=Status.NOT_RUN, reason=reason)


def withheld(function: Callable[..., None], status: Status, reason: str) -> Check:
    """A check that is listed and not run, with the reason why."""

    def nothing() -> None:
        raise AssertionError(f"{function.__name__} was withheld: {reason}")

    return Check(
        id=function.__name__,
        run=nothing,
        withheld=status,
        reason=reason,
        traits=_traits_of(function),
    )


def not_claimed(function: Callable[..., None], reason: str) -> Check:
    """A check that no claim asks for."""
    return withheld(function, Status.NOT_CLAIMED, reason)
