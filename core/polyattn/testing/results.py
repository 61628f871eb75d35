"""What a check says: passed, failed, not claimed, and everything a person needs to act on it."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, ParamSpec, Self

from polyattn import strict_yaml
from polyattn.errors import ConfigError


class Status(StrEnum):
    """How one check of one subject ended."""

    PASSED = "passed"
    FAILED = "failed"
    """The property does not hold."""
    ERROR = "error"
    """The check could not be carried out: a missing import, or a fault in the suite itself."""
    DOES_NOT_HOLD = "does not hold"
    """The property does not hold, and nothing claims it: it is reported, and fails nothing."""
    NOT_CLAIMED = "not claimed"
    NOT_RUN = "not run"
    XFAILED = "expected failure"
    XPASSED = "unexpectedly passed"
    """Listed as an expected failure and passed: a failure, so that the list stays true."""

    @property
    def good(self) -> bool:
        """Whether this status lets a run succeed."""
        return self not in (Status.FAILED, Status.ERROR, Status.XPASSED)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Property:
    """One property of attention, in the words that its failures are explained with."""

    meaning: str
    """One sentence: what holds."""
    causes: tuple[str, ...]
    """The usual causes of a failure, most common first."""
    claim: str | None = None
    """The claim that would switch the check off, or None where nothing does."""


ANSWERS_IN_TIME = Property(
    meaning="A small call is answered within the time that it is given.",
    causes=(
        "a loop that does not end",
        "waiting for input, a lock or the network",
        "slow code, or a busy machine: `polyattn check --patience SECONDS` gives it more",
    ),
)
SURVIVES = Property(
    meaning="A call gives something or raises something: the process that it runs in lives on.",
    causes=(
        "compiled code that reads or writes out of bounds",
        "more memory than there is",
        "os._exit, or a signal sent to the own process",
    ),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seen:
    """What was seen when a property failed. Fields that do not apply are None."""

    what: str
    given: str = ""
    """The inputs: shapes, dtype, mask, seed."""
    index: tuple[int, ...] | None = None
    got: float | None = None
    expected: float | None = None
    tolerance: float | None = None

    def __str__(self) -> str:
        lines = [self.what]
        if self.got is not None:
            at = "" if self.index is None else f" at {list(self.index)}"
            lines.append(f"got {self.got:.10g}, expected {self.expected:.10g}{at}")
        if self.got is not None and self.expected is not None and self.tolerance is not None:
            lines[-1] += f"; off by {abs(self.got - self.expected):.2e}"
            lines[-1] += f", tolerance {self.tolerance:.2e}"
        if self.given:
            lines.append(f"given {self.given}")
        return "\n".join(lines)


class Mismatch(AssertionError):
    """Raised inside a check; leaves it as a ``CheckFailure`` that knows the property."""

    def __init__(self, seen: Seen) -> None:
        self.seen = seen
        super().__init__(str(seen))


class CheckFailure(AssertionError):
    """A property that does not hold. The message stands alone."""

    def __init__(self, check: str, property: Property, seen: Seen) -> None:
        self.check = check
        self.property = property
        self.seen = seen
        super().__init__(check, property, seen)

    def __str__(self) -> str:
        off = self.property.claim
        lines = [f"{self.check}: {self.property.meaning}", "seen:"]
        lines += [f"  {line}" for line in str(self.seen).splitlines()]
        lines += ["usual causes:", *(f"  - {cause}" for cause in self.property.causes)]
        lines.append(f"switched off by: {off}" if off else "switched off by: nothing, it is core")
        return "\n".join(lines)


class ToldFailure(CheckFailure):
    """A failure that was seen in another process, in the words in which it was told there."""

    def __init__(self, check: str, property: Property, seen: Seen, text: str) -> None:
        super().__init__(check, property, seen)
        self.text = text
        # For pickles: an exception is made again from its arguments.
        self.args = (check, property, seen, text)

    def __str__(self) -> str:
        return self.text


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """The outcome of one check, as data."""

    id: str
    """``check_name[parameters]``, unique within a run."""
    status: Status
    reason: str = ""
    failure: CheckFailure | None = None
    error: BaseException | None = None
    """With ERROR: what was raised, where it was raised in this process."""
    follows: str = ""
    """The id of an earlier failure from which this one probably follows; it need not be explained
    by itself."""
    seconds: float = 0.0

    @property
    def name(self) -> str:
        """The check's name, without its parameters."""
        return self.id.partition("[")[0]

    def as_json(self) -> dict[str, Any]:
        """Plain data, for ``--json``."""
        row: dict[str, Any] = {
            "id": self.id,
            "status": str(self.status),
            "reason": self.reason,
            "follows": self.follows,
            "seconds": round(self.seconds, 4),
        }
        if self.failure is not None:
            row["failure"] = {
                **dataclasses.asdict(self.failure.property),
                **{key: _plain(x) for key, x in dataclasses.asdict(self.failure.seen).items()},
                "text": str(self.failure),
            }
        return row

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Self:
        """The result that ``as_json`` wrote down, but for an exception."""
        failure = None
        if "failure" in row:
            held = dict(row["failure"])
            text = held.pop("text")
            property = Property(**_fields(Property, held))
            seen = Seen(**_fields(Seen, held))
            failure = ToldFailure(row["id"].partition("[")[0], property, seen, text)
        known = {key: row[key] for key in ("id", "reason", "follows", "seconds")}
        return cls(status=Status(row["status"]), failure=failure, **known)


TIME_IS_OVER = "seconds were over"
TOO_MANY_ENDS = "checks did not come to an end: the rest was not run"
CANNOT_BE_LOADED_AGAIN = "it could not be loaded again"


def cut_short(results: Iterable[Result]) -> list[Result]:
    """What was not reached before the run was ended: not what nobody asked for."""
    ends = (TIME_IS_OVER, TOO_MANY_ENDS, CANNOT_BE_LOADED_AGAIN)
    return [x for x in results if x.status is Status.NOT_RUN and x.reason.endswith(ends)]


def unfinished(results: Collection[Result]) -> str:
    """What a run is in one line that found no fault in what it reached, and did not reach all;
    nothing where it did, or where there is a fault to tell."""
    left = cut_short(results)
    if not left or not all(result.status.good for result in results):
        return ""
    were = "1 check was" if len(left) == 1 else f"{len(left)} checks were"
    return (
        f"unfinished; {were} not run ({left[0].reason}): `--patience SECONDS` gives it more; "
        "nothing fails of what was run"
    )


def _plain(value: Any) -> Any:
    """Data that JSON has: a number that is none is a word there."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _fields(kind: type[Property] | type[Seen], held: Mapping[str, Any]) -> dict[str, Any]:
    """What of plain data belongs to one of them."""
    return {x.name: _read(x.name, held[x.name]) for x in dataclasses.fields(kind)}


def _read(name: str, value: Any) -> Any:
    if name in ("got", "expected", "tolerance") and isinstance(value, str):
        return float(value)
    return tuple(value) if isinstance(value, list) else value


def expected_of(name: str, expected: Mapping[str, str]) -> dict[str, str]:
    """The expected failures of one name among several, by the ids of its checks.

    A key is the id of a check, which then is meant for every name, or ``name-id``.
    """
    own = f"{name}-"
    return {
        key.removeprefix(own): reason
        for key, reason in expected.items()
        if key.startswith((own, "check_"))
    }


def need_ids(expected: Iterable[str], known: Collection[str]) -> None:
    """Raises: ConfigError for an expected failure that belongs to no check."""
    stale = sorted(set(expected) - set(known))
    if stale:
        hint = f"ids look like {next(iter(known))!r}" if known else "there is nothing to check"
        raise ConfigError(f"expected_failures = {stale}: no such check; {hint}")


def read_expected(path: Path) -> dict[str, str]:
    """Expected failures from a YAML file. Raises: ConfigError for anything but {id: reason}."""
    found = strict_yaml.read(path)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: expected {{id: reason}}, got a {type(found).__name__}")
    for id, reason in found.items():
        if not isinstance(reason, str) or not reason.strip():
            raise ConfigError(f"{path}: {id}: expected a reason in words, got {reason!r:.40}")
    return found


def as_expected(result: Result, reason: str | None) -> Result:
    """The result in the light of an expected failure; None: there is none.

    Strict: only a property that does not hold is the failure that was expected, an error is not;
    what passes is a failure, so that the list stays true, and what is not claimed is an error. What
    was not run says nothing of the list.
    """
    if reason is None:
        return result
    if result.status is Status.FAILED:
        return dataclasses.replace(result, status=Status.XFAILED, reason=reason)
    if result.status is Status.PASSED:
        healed = f"expected to fail ({reason}) and passed; take it off the list"
        return dataclasses.replace(result, status=Status.XPASSED, reason=healed)
    if result.status is Status.NOT_CLAIMED:
        stale = f"{result.id}: {not_expected(reason, result.reason)}"
        return dataclasses.replace(result, status=Status.ERROR, reason=stale)
    return result


def not_expected(expected: str, reason: str) -> str:
    """What is said of an expected failure of a check that is not claimed, for this reason."""
    return f"expected to fail ({expected}) and is not claimed: {reason}; take it off the list"


P = ParamSpec("P")


def proves(
    meaning: str, *, causes: tuple[str, ...], claim: str | None = None
) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """Attach a property to a check, so that each of its failures explains itself."""
    property = Property(meaning=meaning, causes=causes, claim=claim)

    def decorate(function: Callable[P, None]) -> Callable[P, None]:
        @functools.wraps(function)
        def check(*args: P.args, **kwargs: P.kwargs) -> None:
            try:
                function(*args, **kwargs)
            except Mismatch as mismatch:
                raise CheckFailure(function.__name__, property, mismatch.seen) from (
                    mismatch.__cause__
                )

        check.__dict__["property"] = property
        return check

    return decorate


def property_of(check: Callable[..., None]) -> Property:
    """The property that a check proves."""
    found = check.__dict__["property"]
    assert isinstance(found, Property)
    return found
