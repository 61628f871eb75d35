"""The text that models learn from: any bytes, from a file or from Python's own documentation.

Bytes are bytes: nothing is decoded, so a text in any encoding, or none, simply works.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from polyattn.errors import ConfigError

LIMIT = 32 * 2**20
"""Bytes that are read at most; the rest of a longer file is left alone, and the run says so."""

HELD_OUT = 0.1
"""The share at the end of the text that no model is trained on."""

JUDGED = 2**16
"""Bytes that are held out at most: more would not make the figures better."""


@dataclass(frozen=True)
class Text:
    """A text and where it came from.

    source: its name for people. default: whether nobody named one. data: its bytes, at most
    ``LIMIT``. size: the bytes that the source has in full.
    """

    source: str
    default: bool
    data: bytes
    size: int

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    @property
    def note(self) -> str:
        """One line if the text was cut, else empty."""
        if self.size <= len(self.data):
            return ""
        return f"{self.source} has {self.size:,} bytes; the first {len(self.data):,} are used"


def default_text() -> Text:
    """The English of ``pydoc_data.topics``, which ships with Python: half a megabyte."""
    from pydoc_data import topics

    data = "\n".join(topics.topics.values()).encode()
    return Text("pydoc_data.topics", True, data, len(data))


def read_text(path: Path, least: int) -> Text:
    """Read a file of ``least`` bytes or more.

    Raises: ConfigError, one line, if there is no such file, it cannot be read, or is too short.
    """
    if not path.exists():
        raise ConfigError(f"--text {path}: no such file; give the path of a text to learn from")
    if path.is_dir():
        raise ConfigError(f"--text {path}: expected a file, this is a folder; name one file")
    try:
        with path.open("rb") as file:
            data = file.read(LIMIT)
            size = max(len(data), path.stat().st_size)
    except OSError as error:
        raise ConfigError(
            f"--text {path}: cannot be read ({error.strerror}); give a file that you may read"
        ) from None
    if not data:
        raise ConfigError(
            f"--text {path}: the file is empty; give a text of {least:,} bytes or more"
        )
    if len(data) < least:
        raise ConfigError(
            f"--text {path}: {len(data):,} bytes are shorter than one context to learn from and "
            f"one to be judged on; give a text of {least:,} bytes or more, better 100,000"
        )
    return Text(str(path), False, data, size)


def split(data: bytes, least: int = 1) -> tuple[bytes, bytes]:
    """(training, held out): the last tenth is held out, at least ``least`` bytes, at most
    ``JUDGED``."""
    held = min(JUDGED, max(least, round(len(data) * HELD_OUT)))
    return data[:-held], data[-held:]
