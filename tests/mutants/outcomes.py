"""What became of the mutants, as it is committed: one line each, and the score that follows.

A record counts while the code of its file is what it was (``digest``), and the mutant is the same
change of it (``change``); comments and docstrings may change, and so may the ways to make mutants.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml
from tests.mutants.mutate import Mutant, digest, files, mutants

HERE = Path(__file__).parent
OUTCOMES = HERE / "outcomes.jsonl"
EQUIVALENT = HERE / "equivalent.yaml"
SAMPLED = 100
SHARES = {"dropped_argument": 1 / 8, "swapped_arguments": 1 / 8}
"""The share of mutants that are made, by operator: of these there are many, and most raise."""
SHARE = 1 / 3
"""That of all others."""
MOST = 40
"""Of one file no more than these, those drawn first: each file is asked about as much."""
LIVED = frozenset({"survived", "error"})
"""The outcomes that count as not killed: a check that breaks has not said what is wrong."""


@dataclass(frozen=True)
class Record:
    """The outcome of one mutant. ``extended``: the checks that take seconds have run as well."""

    id: str
    outcome: str
    by: str
    digest: str
    change: str
    extended: bool = False

    @classmethod
    def of(cls, mutant: Mutant, outcome: str, by: str, *, extended: bool = False) -> Record:
        return cls(mutant.id, outcome, by, digest(mutant.path), mutant.change, extended)

    def still_of(self, mutant: Mutant | None) -> bool:
        """Whether it speaks of this mutant of the code as it is now."""
        if mutant is None:
            return False
        return (self.digest, self.change) == (digest(mutant.path), mutant.change)


def read_records(path: Path = OUTCOMES) -> dict[str, Record]:
    """Every record by its mutant; a later line replaces an earlier one."""
    if not path.exists():
        return {}
    records = (Record(**json.loads(line)) for line in path.read_text().splitlines())
    return {record.id: record for record in records}


def line_of(record: Record) -> str:
    return json.dumps(dataclasses.asdict(record)) + "\n"


def stale(records: Iterable[Record]) -> set[str]:
    """The files with records of what is not so any more."""
    known = every_mutant()
    return {file_of(r.id) for r in records if not r.still_of(known.get(r.id))}


def file_of(id: str) -> str:
    return id.partition(":")[0]


def operator_of(id: str) -> str:
    return id.split(":")[2]


def chosen(every: Iterable[Mutant]) -> list[Mutant]:
    """The mutants of a file that are made, drawn by their ids."""

    def place(mutant: Mutant) -> float:
        return _draw("made", mutant.id) / SHARES.get(operator_of(mutant.id), SHARE)

    mutants = list(every)
    first = sorted((m for m in mutants if place(m) < 1), key=place)[:MOST]
    return [mutant for mutant in mutants if mutant in first]


def sample(records: Iterable[Record]) -> list[Record]:
    """A hundred of those that were killed or survived, drawn by their ids."""
    usual = [record for record in records if record.outcome in {"killed", "survived"}]
    return sorted(usual, key=lambda record: _draw("sampled", record.id))[:SAMPLED]


def _draw(salt: str, id: str) -> float:
    """A number from 0 to 1, always the same for an id."""
    return int.from_bytes(hashlib.sha256(f"{salt} {id}".encode()).digest()[:8]) / 2**64


def equivalent() -> dict[str, str]:
    """Mutants that compute the same, each with its reason."""
    if not EQUIVALENT.exists():
        return {}
    return yaml.safe_load(EQUIVALENT.read_text()) or {}


@dataclass(frozen=True)
class Score:
    """The figures of some records."""

    made: int
    stillborn: int
    killed: int
    survived: int
    equivalent: int

    @property
    def share(self) -> float:
        """Killed, of those that are neither stillborn nor equivalent."""
        return self.killed / max(self.killed + self.survived, 1)


def score(records: Iterable[Record], same: Mapping[str, str]) -> Score:
    records = list(records)
    stillborn = [r for r in records if r.outcome == "stillborn"]
    lived = [r for r in records if r.outcome in LIVED]
    spared = [r for r in lived if r.id in same]
    killed = len(records) - len(stillborn) - len(lived)
    return Score(
        len(records) - len(stillborn),
        len(stillborn),
        killed,
        len(lived) - len(spared),
        len(spared),
    )


@cache
def every_mutant() -> dict[str, Mutant]:
    return {mutant.id: mutant for path in files() for mutant in mutants(path)}
