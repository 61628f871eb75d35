"""A fault whose cause is known: what it is, the line to write, and what else follows from it."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping

from polyattn.testing.planned import Check, Trait
from polyattn.testing.results import CheckFailure, Property, Seen


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cause:
    """What was recognised by computing it and comparing."""

    name: str
    """``the logits are not scaled``."""
    write: str
    """The code that is right, to be written instead; empty where nothing need be wrong."""
    seen: str = "computed in that way, the numbers agree to four digits"
    """What showed it."""
    scale: float | str | None = None
    """The scale that it has, a number or the name of a rule of ``doors.scales``, where nothing else
    is wrong: the other checks then allow for it."""


class KnownFailure(CheckFailure):
    """A failure whose cause is known: it is named alone, and first."""

    def __init__(self, check: str, property: Property, seen: Seen, cause: Cause) -> None:
        super().__init__(check, dataclasses.replace(property, causes=(cause.name,)), seen)
        self.cause = cause
        # For pickles: an exception is made again from its arguments.
        self.args = (check, property, seen, cause)

    def __str__(self) -> str:
        first = "fix this first: " if self.cause.write else ""
        lines = [f"{self.check}: {first}{self.cause.name}"]
        if self.cause.write:
            lines += ["write:", *(f"  {line}" for line in self.cause.write.splitlines())]
        lines += ["seen:", *(f"  {line}" for line in str(self.seen).splitlines())]
        if self.property.claim:
            lines.append(f"meant so? {self.property.claim}")
        return "\n".join(lines)


class DoorFailure(CheckFailure):
    """A failure of one check of code from elsewhere: what switches it off is a flag, if any.

    follows: the id of the finding that explains it, and its cause; empty where nothing does.
    """

    def __init__(self, check: str, property: Property, seen: Seen, follows: str = "") -> None:
        super().__init__(check, property, seen)
        self.follows = follows
        self.args = (check, property, seen, follows)

    def __str__(self) -> str:
        lines = [f"{self.check}: {self.property.meaning}", "seen:"]
        lines += [f"  {line}" for line in str(self.seen).splitlines()]
        if self.follows:
            lines.append(f"follows from: {self.follows}")
            return "\n".join(lines)
        lines += ["usual causes:", *(f"  - {cause}" for cause in self.property.causes)]
        if self.property.claim:
            lines.append(f"switched off by: {self.property.claim}")
        return "\n".join(lines)


FLAGS: Mapping[Trait, str] = {
    Trait.AGAINST_SOFTMAX: "--reference none",
    Trait.WHAT_TRUE_MEANS: "--true-means attend|mask, where it means the other",
}
"""What the user of a door can say to be spared a check of this kind. The others nothing spares."""


def with_flags(check: Check, follows: str = "", said: Collection[str] = ()) -> Check:
    """The check, its failures in the words of a door: nobody here has claims to take back.

    follows: the finding that explains its failure, should it fail. said: flags that were given
    already, and are not advised again.
    """

    known = {trait: flag for trait, flag in FLAGS.items() if flag not in said}
    flag = next((flag for trait, flag in known.items() if trait in check.traits), None)

    def run() -> None:
        try:
            check.run()
        except CheckFailure as failure:
            property = dataclasses.replace(failure.property, claim=flag)
            told = DoorFailure(failure.check, property, failure.seen, follows)
            raise told from failure.__cause__

    return dataclasses.replace(check, run=run)
