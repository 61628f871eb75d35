"""The section "Mutants" of docs/conformance.md, written from the outcomes."""

from __future__ import annotations

from pathlib import Path

from tests.mutants import outcomes
from tests.mutants.mutate import Mutant
from tests.mutants.outcomes import Record, file_of

PAGE = Path(__file__).parents[2] / "docs" / "conformance.md"
HEAD = "## Mutants\n"

INTRODUCTION = """\
`make mutants` changes the source of the built-in variants blindly, one node of the syntax tree at a
time (signs, comparisons, axes, bounds, arguments, operands, statements, claims), and runs the suite
over what uses it until a check fails. Of {possible} possible changes {made} were made that can be
imported: one in eight of those that drop or swap arguments and one in three of the others, or the
first {most} of these in a larger file, drawn by their names. **{killed} were killed: {share:.1%} of
those that are not equivalent.** {survived} survived, and {equivalent} are known to compute the same
(`tests/mutants/equivalent.yaml` says why, {same:.1%} of all). A hundred of them are made again by
`tests/mutants/test_sample.py`, in `make test`.

- Not changed: texts, annotations, decorators, imports, assertions, the ranges of options,
  `examples()`, and what runs on CUDA alone. Claims are only changed into larger ones: a variant
  that claims less than it can do is honest.
- `make mutants ARGS="window.py --again"` runs one file anew, `--survivors` those that survived,
  `--all` every possible change; `--extended` gives survivors the checks that take seconds.
"""


def section() -> str:
    """The whole section, from its head on."""
    records, same = outcomes.read_records(), outcomes.equivalent()
    known = outcomes.every_mutant()
    figures = outcomes.score(records.values(), same)
    introduction = INTRODUCTION.format(
        possible=f"{len(known):,}",
        most=outcomes.MOST,
        made=f"{figures.made:,}",
        killed=f"{figures.killed:,}",
        share=figures.share,
        survived=figures.survived,
        equivalent=figures.equivalent,
        same=figures.equivalent / max(figures.made, 1),
    )
    parts = [HEAD, introduction, _table(records, same)]
    lived = survivors(records, same)
    if lived:
        listed = "".join(f"- `{id}` (`{_change(known.get(id))}`)\n" for id in lived)
        parts.append(f"Survivors:\n\n{listed}")
    return "\n".join(parts)


def survivors(records: dict[str, Record], same: dict[str, str]) -> list[str]:
    """The mutants that no check has killed and that are not equivalent."""
    return [id for id, r in records.items() if r.outcome in outcomes.LIVED and id not in same]


def summary() -> str:
    figures = outcomes.score(outcomes.read_records().values(), outcomes.equivalent())
    return (
        f"{figures.killed} of {figures.killed + figures.survived} killed ({figures.share:.1%}), "
        f"{figures.equivalent} equivalent, {figures.stillborn} could not be imported"
    )


def _table(records: dict[str, Record], same: dict[str, str]) -> str:
    rows = ["| file | made | killed | hung or crashed | equivalent | survived |"]
    rows.append("|---|---|---|---|---|---|")
    for name in sorted({file_of(id) for id in records}):
        mine = [r for r in records.values() if file_of(r.id) == name]
        figures = outcomes.score(mine, same)
        ended = sum(r.outcome in {"hung", "crashed"} for r in mine)
        cells = (figures.made, figures.killed, ended, figures.equivalent, figures.survived)
        rows.append(f"| `{name}` | {' | '.join(str(cell) for cell in cells)} |")
    return "\n".join(rows) + "\n"


def _change(mutant: Mutant | None) -> str:
    return str(mutant).replace("`", "") if mutant else "gone"


def written(text: str) -> str:
    """The page's text with the section as it should be."""
    before, head, rest = text.partition(HEAD)
    if not head:
        return f"{text.rstrip()}\n\n{section()}"
    after = rest.partition("\n## ")
    return before + section() + ("\n## " + after[2] if after[1] else "")


def write() -> None:
    PAGE.write_text(written(PAGE.read_text()))


if __name__ == "__main__":
    write()
