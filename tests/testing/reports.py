"""Public reports of attention bugs, and what became of each: reports.yaml, read and drawn."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml

FILE = Path(__file__).parent / "reports.yaml"
ENDS = ("caught", "refused", "impossible", "not_claimed")


@dataclass(frozen=True)
class Report:
    """One report: the fault, and either the check that catches it planted, or a sentence."""

    number: str
    where: str
    """``owner/repository#number``."""
    fault: str
    end: str
    """One of ENDS."""
    said: str
    """The check's name, or why there is none."""
    planted: str = ""

    @property
    def row(self) -> str:
        """The row of the table on the page."""
        repository, _, number = self.where.partition("#")
        link = f"[{self.where}](https://github.com/{repository}/issues/{number})"
        if self.end == "caught":
            return f"| {link} | {self.fault} | `{self.planted}` | `{self.said}` |"
        return f"| {link} | {self.fault} | | {self.end.replace('_', ' ')}: {self.said} |"


def load_reports() -> list[Report]:
    """All reports, by their numbers."""
    found = []
    for number, row in sorted(yaml.safe_load(FILE.read_text()).items()):
        (end,) = [end for end in ENDS if end in row]
        found.append(
            Report(number, row["report"], row["fault"], end, row[end], row.get("planted", ""))
        )
    return found


def table() -> str:
    """The rows of the page, each with its line end."""
    return "".join(f"{report.row}\n" for report in load_reports())
