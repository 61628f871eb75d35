"""Which checks are meant where some are asked for alone: ``check --only TEXT``. No torch."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence

from polyattn.errors import ConfigError

LEFT_OUT = "--only leaves it out"


def meant(texts: Sequence[str], ids: Collection[str]) -> set[str]:
    """The ids that are meant: each text is an id, or else a name, or else a part of some ids.

    Raises: ConfigError for a text that means none, with the nearest ids.
    """
    found = set[str]()
    for text in texts:
        named = {id for id in ids if id.partition("[")[0] == text}
        hit = {text} & set(ids) or named or {id for id in ids if text in id}
        if not hit:
            raise ConfigError(f"--only {text}: no such check; {_nearest(text, ids)}")
        found |= hit
    return found


def _nearest(text: str, ids: Collection[str]) -> str:
    known = dict.fromkeys([*(id.partition("[")[0] for id in ids), *ids])
    near = difflib.get_close_matches(text, known, n=3, cutoff=0.5)
    if near:
        return f"did you mean {' or '.join(map(repr, near))}?"
    return f"ids look like {next(iter(ids), 'check_x')!r}, and --json lists them all"
