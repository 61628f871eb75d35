"""Run the mutants: ``make mutants``, ``make mutants ARGS="gates.py --again"``.

What has an outcome is not run again, so a run that was interrupted goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.mutants import outcomes, page, room
from tests.mutants.mutate import Mutant, files, mutants
from tests.mutants.outcomes import OUTCOMES, Record

from polyattn.testing.planned import Check


class Ranking:
    """Which check to try first: the one that has killed most for its time."""

    def __init__(self, seconds: dict[str, float], kills: Iterable[str]) -> None:
        self.seconds = seconds
        self.kills = Counter(kills)

    def __call__(self, key: str) -> float:
        return (self.kills[key] + 0.2) / (self.seconds.get(key, 0.1) + 0.01)


def usual(key: str, check: Check) -> bool:
    return not check.extended


def lengthy(key: str, check: Check) -> bool:
    return check.extended


def run_file(
    path: Path, todo: list[Mutant], known: list[Record], keep: Callable[[Record], None]
) -> None:
    """Run the mutants of one file and keep a record of each."""
    names = room.names_for(path)
    started = time.monotonic()
    plain = room.live(None, names, usual, lambda key: 0.0, 1200.0)
    if plain.what != "survived":
        sys.exit(f"{path.name} as it is: {plain.what} in {plain.by}; mutants tell nothing yet")
    whole = time.monotonic() - started
    ranking = Ranking(dict(plain.passed or {}), [r.by for r in known if r.by])
    for mutant in todo:
        found = room.live(mutant, names, usual, ranking, 5 * whole + room.PATIENCE)
        if found.what == "hung":
            # A busy machine may have stood still: only what hangs twice does.
            found = room.live(mutant, names, usual, ranking, 5 * whole + room.PATIENCE)
        ranking.kills[found.by] += 1
        keep(Record.of(mutant, found.what, found.by))
    print(
        f"{path.name}: {len(todo)} in {time.monotonic() - started:.0f} s, checks of {names}",
        flush=True,
    )


def run_extended(path: Path, todo: list[Mutant], keep: Callable[[Record], None]) -> None:
    """Give those that survived the checks that take seconds."""
    names = room.names_for(path)
    for mutant in todo:
        found = room.live(mutant, names, lengthy, lambda key: 0.0, 600.0)
        keep(Record.of(mutant, found.what, found.by, extended=True))


def repeat(records: list[Record]) -> None:
    """Make mutants again and run, of each, the one check that killed it; print what it says."""
    known = outcomes.every_mutant()
    for record in records:
        if record.outcome != "killed":
            continue
        name = record.by.partition(":")[0]
        found = room.live(
            known[record.id], [name], lambda key, _, by=record.by: key == by, lambda key: 0.0, 120.0
        )
        print(json.dumps({"id": record.id, "what": found.what, "by": found.by}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", help="such as window.py; none: all")
    parser.add_argument("--all", action="store_true", help="every mutant, not those drawn alone")
    parser.add_argument("--again", action="store_true", help="forget the outcomes of these files")
    parser.add_argument("--survivors", action="store_true", help="run those that survived again")
    parser.add_argument("--extended", action="store_true", help="give survivors what takes seconds")
    parser.add_argument("--ids", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    room.unimported()
    records = outcomes.read_records()
    if options.ids is not None:
        unknown = [id for id in options.ids if id not in records]
        if unknown:
            sys.exit(f"--ids {' '.join(unknown)}: expected ids of {OUTCOMES.name}")
        repeat([records[id] for id in options.ids])
        return
    paths = [path for path in files() if path.name in (options.files or [path.name])]
    if len(paths) < len(options.files):
        sys.exit(f"{options.files}: expected of {[path.name for path in files()]}")
    for path in paths:
        _file(path, options, records)
    print(page.summary(), flush=True)


def _file(path: Path, options: argparse.Namespace, records: dict[str, Record]) -> None:
    """Run what of one file has no outcome yet, or is asked for again."""

    def keep(record: Record) -> None:
        records[record.id] = record
        with OUTCOMES.open("a") as file:
            file.write(outcomes.line_of(record))

    every = mutants(path)
    now = {mutant.id: mutant for mutant in every}
    places = {mutant.id: i for i, mutant in enumerate(every)}
    mine = {id: r for id, r in records.items() if outcomes.file_of(id) == path.name}
    for id, record in mine.items():
        gone = options.again or not record.still_of(now.get(id))
        if gone or (options.survivors and record.outcome in outcomes.LIVED):
            del records[id]
    wanted = every if options.all else outcomes.chosen(every)
    todo = [mutant for mutant in wanted if mutant.id not in records]
    known = [record for record in records.values() if outcomes.file_of(record.id) == path.name]
    if todo:
        run_file(path, todo, known, keep)
    if options.extended:
        same = outcomes.equivalent()
        lived = [m for m in every if m.id not in same and _unextended(records.get(m.id))]
        run_extended(path, lived, keep)
    order = [(outcomes.file_of(id), places.get(id, 0), id) for id in records]
    OUTCOMES.write_text("".join(outcomes.line_of(records[id]) for _, _, id in sorted(order)))


def _unextended(record: Record | None) -> bool:
    return record is not None and record.outcome == "survived" and not record.extended


if __name__ == "__main__":
    main()
