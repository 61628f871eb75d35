"""A hundred mutants with their committed outcomes, made again; and the page says what is so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache

import pytest
from tests.mutants import outcomes, page
from tests.mutants.mutate import SOURCES, mutants
from tests.mutants.outcomes import Record, file_of

RECORDS = outcomes.read_records()
SAMPLE = outcomes.sample(RECORDS.values())
KILLED = [record for record in SAMPLE if record.outcome == "killed"]
LIMIT = 300


@cache
def _made_again() -> dict[str, str]:
    """What each killed mutant of the sample ends with under the one check that killed it.

    In processes of their own: here the variants may have been imported.
    """
    halves = KILLED[::2], KILLED[1::2]
    command = [sys.executable, "-m", "tests.mutants.run", "--ids"]
    runs = [
        subprocess.Popen(
            [*command, *(record.id for record in half)],
            cwd=SOURCES.parents[1],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for half in halves
    ]
    told = []
    for run in runs:
        out, errors = run.communicate(timeout=LIMIT)
        assert run.returncode == 0, errors
        told += [json.loads(line) for line in out.splitlines()]
    return {row["id"]: row["what"] for row in told}


def _unchanged(record: Record) -> None:
    if not record.still_of(outcomes.every_mutant().get(record.id)):
        name = file_of(record.id)
        pytest.fail(f"the code of {name} has changed since: run `make mutants ARGS={name}`")


@pytest.mark.parametrize("record", KILLED, ids=lambda record: record.id)
def test_a_killed_mutant_is_killed_again(record: Record) -> None:
    _unchanged(record)
    what = _made_again().get(record.id)
    assert what == "killed", f"{record.by} lets {record.id} pass now ({what})"


def test_every_record_is_of_the_code_as_it_is() -> None:
    names = outcomes.stale(RECORDS.values())
    assert not names, f"run `make mutants ARGS={' '.join(sorted(names))!r}`"


def test_the_sample_is_whole() -> None:
    assert len(SAMPLE) == outcomes.SAMPLED


def test_survivors_of_the_sample_are_listed() -> None:
    """None is left out: on the page, or among the equivalent with a reason."""
    text, same = page.PAGE.read_text(), outcomes.equivalent()
    lived = [record.id for record in SAMPLE if record.outcome == "survived"]
    assert [id for id in lived if id not in same and f"`{id}`" not in text] == []


def test_the_page_says_what_the_outcomes_say() -> None:
    text = page.PAGE.read_text()
    assert text == page.written(text), "run `python -m tests.mutants.page`"


def test_a_thousand_mutants_were_made() -> None:
    figures = outcomes.score(RECORDS.values(), outcomes.equivalent())
    assert figures.made >= 1000
    assert figures.equivalent <= figures.made / 10


def test_the_score_is_what_is_asked_for() -> None:
    assert outcomes.score(RECORDS.values(), outcomes.equivalent()).share >= 0.97


def test_equivalent_mutants_are_survivors_with_a_reason() -> None:
    for id, reason in outcomes.equivalent().items():
        assert reason
        assert RECORDS[id].outcome == "survived", f"{id} is not equivalent: it was killed"


def test_the_drawn_mutants_have_outcomes() -> None:
    missing = {
        path.name
        for path in outcomes.files()
        for mutant in outcomes.chosen(mutants(path))
        if mutant.id not in RECORDS
    }
    assert not missing, f"run `make mutants ARGS={' '.join(sorted(missing))!r}`"
