"""Text from elsewhere, as a terminal may be given it: it can neither break nor steer it."""

from __future__ import annotations

import re
import sys
from typing import TextIO

STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""What a terminal obeys instead of showing it, but for tabs and line breaks; and what turns the
direction of the text around it."""


def printable(text: str, stream: TextIO | None = None) -> str:
    """The text in what the stream can show, by default standard output; what would steer a terminal
    is written out, as ``\\x1b``."""
    seen = STEERING.sub(_written_out, text)
    encoding = getattr(stream or sys.stdout, "encoding", None) or "utf-8"
    return seen.encode(encoding, "backslashreplace").decode(encoding)


def _written_out(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")
