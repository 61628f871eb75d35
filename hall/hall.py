"""Released attention code, taken through the doors of the suite as it is.

``make hall-of-faults`` installs the packages of requirements.txt into an environment of their own,
checks each entry of entries.yaml, runs each reproduction in faults/, and writes found.json and the
tables of docs/found.md. An adapter has at most ten lines, a reproduction at most fifteen. With the
names of adapters (``ARGS=``) these alone are checked anew. found.json holds the names of the checks
that the doors had, too: where one has come or gone since, the page is stale, and a test says so.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "found.md"
FOUND = HERE / "found.json"
PATIENCE = 120
"""Seconds that an entry has for being loaded, and as many for all checks: some packages take 30
seconds to import, and what is not finished says nothing."""
TIMEOUT = 5 * PATIENCE
"""Seconds after which something is wrong with the suite itself."""
UNFINISHED = 3
"""The exit code where the time was over before all checks were run."""
DOORS = (
    ("sdpa", "hall/adapters/torch_sdpa.py:attention"),
    ("hf", "examples/my_model.py:attention"),
    ("module", "examples/my_model.py:SelfAttention"),
    ("lm", "examples/my_model.py:Model"),
)
"""Each door, and something right that opens it and needs no package but torch."""


def check(entry: dict[str, Any]) -> dict[str, Any]:
    """What the suite says of one entry, with the version that it was said of."""
    adapter = HERE / "adapters" / f"{entry['adapter']}.py"
    target = f"{adapter}:{entry.get('thing', 'attention')}"
    flags = [str(flag) for flag in entry.get("flags", [])]
    command = ["polyattn", "check", target, "--as", entry["door"], *flags, "--json"]
    command += ["--patience", str(PATIENCE)]
    done = subprocess.run(
        [sys.executable, "-c", "from polyattn.cli.main import run; run()", *command[1:]],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    if done.returncode not in (0, 1, UNFINISHED):
        raise RuntimeError(f"{entry['adapter']}: {done.stderr.strip() or done.stdout.strip()}")
    (report,) = json.loads(done.stdout)
    failed: dict[str, str] = {}
    for result in report["results"]:
        if result["status"] in ("failed", "error"):
            told = result["reason"].replace(f"{HERE.parent}/", "")  # the same on every machine
            failed.setdefault(result["id"].partition("[")[0], told)
    statuses = [result["status"] for result in report["results"]]
    return {
        "version": version(entry["package"]),
        "counts": {status: statuses.count(status) for status in sorted(set(statuses))},
        "failed": failed,
        "notes": report["notes"],
        "unfinished": report["unfinished"],
    }


def reproduce(path: Path) -> str:
    """What a reproduction says: it ends with an AssertionError where the fault is there."""
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    last = done.stderr.strip().splitlines()[-1:] or [""]
    if done.returncode == 0:
        return "gone"
    if last[0].startswith("AssertionError: "):
        return last[0].removeprefix("AssertionError: ")
    raise RuntimeError(f"{path.name} could not be run: {last[0]}")


def table(entries: list[dict[str, Any]], found: dict[str, Any]) -> str:
    """One row for each entry."""
    lines = [
        "| what | package | door | passed | failed checks | verdict |",
        "|---|---|---|---|---|---|",
    ]
    for entry in entries:
        result = found["entries"][entry["adapter"]]
        flags = " ".join(["--as", entry["door"], *(str(flag) for flag in entry.get("flags", []))])
        names = ", ".join(f"`{name.removeprefix('check_')}`" for name in result["failed"]) or "none"
        lines.append(
            f"| {entry['what']} | {entry['package']} {result['version']} | `{flags}` | "
            f"{result['counts'].get('passed', 0)} | {names} | {_verdict(entry, result)} |"
        )
    return "\n".join(lines)


def _verdict(entry: dict[str, Any], result: dict[str, Any]) -> str:
    left = result.get("unfinished", 0)
    return f"unfinished: {left} checks were not run" if left else str(entry["verdict"])


def checks_of_doors() -> list[str]:
    """The names of the checks that the doors plan now for what they take as right."""
    from polyattn.testing.doors.entrances import listed, open_any

    found: set[str] = set()
    for door, target in DOORS:
        opened = open_any(str(HERE.parent / target), door=door)
        assert opened.subject is not None, f"{target} does not open the door {door}"
        found |= {check.name for check in listed(opened)}
    return sorted(found)


def changed(found: dict[str, Any]) -> str:
    """The checks that have come and gone since the page was made, or nothing."""
    now, then = set(checks_of_doors()), set(found.get("checks", ()))
    lists = {"came": sorted(now - then), "went": sorted(then - now)}
    return "; ".join(f"{what}: {', '.join(names)}" for what, names in lists.items() if names)


def faults(found: dict[str, Any]) -> str:
    """One row for each reproduction."""
    lines = ["| reproduction | what it shows |", "|---|---|"]
    lines += [
        f"| [{name}](../hall/faults/{name}) | {said} |" for name, said in found["faults"].items()
    ]
    return "\n".join(lines)


def written(page: str, name: str, text: str) -> str:
    """The page with what lies between two marks exchanged."""
    marks = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
    assert marks.search(page), f"the page has no place for {name}"
    return marks.sub(lambda match: f"{match[1]}\n{text}\n\n{match[2]}", page)


def load_entries() -> list[dict[str, Any]]:
    """The entries, in the order of the page."""
    entries = yaml.safe_load((HERE / "entries.yaml").read_text())
    assert isinstance(entries, list)
    return entries


def main(only: list[str]) -> None:
    """Check all entries, or those whose adapters are named."""
    entries = load_entries()
    found = json.loads(FOUND.read_text()) if FOUND.exists() else {"entries": {}, "faults": {}}
    for entry in entries:
        if only and entry["adapter"] not in only:
            continue
        result = found["entries"][entry["adapter"]] = check(entry)
        print(f"{entry['adapter']}: {result['counts']} {list(result['failed'])}", flush=True)
        write(found)
    if not only:
        found["checks"] = checks_of_doors()
        found["faults"] = {
            path.name: reproduce(path) for path in sorted((HERE / "faults").glob("*.py"))
        }
    write(found)
    page = written(PAGE.read_text(), "entries", table(entries, found))
    PAGE.write_text(written(page, "faults", faults(found)))


def write(found: dict[str, Any]) -> None:
    """Keep what was found, entry by entry: all of it takes long."""
    FOUND.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
