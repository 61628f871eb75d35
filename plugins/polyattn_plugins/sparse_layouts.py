"""Layouts of block-sparse attention: which blocks of keys a block of queries sees.

A layout is a union of terms. Blocks are counted from the first position of the sequence, and no
term depends on how many there are: the layout of a shorter sequence is the corner of that of a
longer one. Letters: H heads, R blocks of a sequence.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from random import Random
from typing import Any, Literal, Self

import pydantic
from pydantic import Field

from polyattn import Options

Table = tuple[tuple[tuple[Literal[0, 1], ...], ...], ...]
Columns = list[list[int]]
"""Of each row of blocks, the blocks that it sees, in order."""

WORDS: Mapping[str, Mapping[str, int]] = {
    "bigbird": {"window": 1, "globals": 2, "random": 2},
    "strided": {"window": 8, "stride": 8},
    "fixed": {"chunk": 8, "summary": 1},
    "chunked": {"chunk": 8, "stride": 8},
}


class Layout(Options):
    """Block of queries r sees block of keys c where any term says so; a term of 0 says nothing.

    ``window``: r and c are at most so many blocks apart. ``globals``: the first blocks see all and
    are seen by all. ``random``: of the blocks between the globals and its window, each block draws
    one out of each of so many equal parts, by ``seed``, and they see one another. ``stride``: r - c
    is a multiple of it. ``chunk``: both lie in one chunk of so many blocks. ``summary``: c is among
    the last so many of its chunk. ``table``: 0 and 1 by (R, R), or (H, R, R) for each head.
    """

    window: int | None = Field(default=None, ge=0)
    globals: int = Field(default=0, ge=0)
    random: int = Field(default=0, ge=0)
    seed: int = 0
    stride: int = Field(default=0, ge=0)
    chunk: int = Field(default=0, ge=0)
    summary: int = Field(default=0, ge=0)
    table: Table | None = None

    @pydantic.model_validator(mode="before")
    @classmethod
    def _spell_out(cls, value: Any) -> Any:
        if isinstance(value, str):
            if value not in WORDS:
                raise ValueError(f"expected {', '.join(WORDS)}, a mapping of terms, or a table")
            return WORDS[value]
        return {"table": value} if isinstance(value, list | tuple) else value

    @pydantic.field_validator("table", mode="before")
    @classmethod
    def _by_head(cls, value: Any) -> Any:
        """A table for all heads is one of a single head."""
        rows = value if isinstance(value, list | tuple) else ()
        flat = any(isinstance(x, int) for row in rows if isinstance(row, list | tuple) for x in row)
        return (value,) if flat else value

    @pydantic.model_validator(mode="after")
    def _fitting(self) -> Self:
        if self.table is not None:
            size = len(self.table[0]) if self.table else 0
            if not size or any({size} != {len(head), *map(len, head)} for head in self.table):
                raise ValueError(
                    "expected a table of (rows, rows) or (heads, rows, rows), not empty"
                )
        if self.summary > self.chunk:
            raise ValueError("expected summary up to chunk: it counts blocks of a chunk")
        if self.seed and not self.random:
            raise ValueError("expected a seed only with random")
        if self == type(self).model_construct():
            raise ValueError("expected at least one term, such as window")
        return self

    def rows(self, first: int, blocks: int) -> list[Columns]:
        """What rows ``first`` and later see of so many blocks: once, or for each head."""
        shared = [self._terms(row, blocks) for row in range(first, blocks)]
        for row in range(first, blocks):
            for column in self._drawn(row):
                shared[row - first].add(column)
                if column >= first:
                    shared[column - first].add(row)
        return [
            [
                sorted(terms.union(c for c in range(blocks) if head and head[row][c]))
                for row, terms in enumerate(shared, first)
            ]
            for head in self.table or [()]
        ]

    def _terms(self, row: int, blocks: int) -> set[int]:
        if row < self.globals:
            return set(range(blocks))
        seen = set(range(min(self.globals, blocks)))
        if self.window is not None:
            seen |= set(range(max(row - self.window, 0), min(row + self.window + 1, blocks)))
        if self.stride:
            seen |= set(range(row % self.stride, blocks, self.stride))
        if self.chunk:
            start = row - row % self.chunk
            seen |= set(range(start, min(start + self.chunk, blocks)))
        for place in range(self.chunk - self.summary, self.chunk):
            seen |= set(range(place, blocks, self.chunk))
        return seen

    def _drawn(self, row: int) -> list[int]:
        """One block out of each part of those between the globals and the window of a row."""
        span = row - self.globals - (self.window or 0)
        draw = Random(f"{self.seed} {row}")
        shares = [(part + draw.random()) / self.random for part in range(self.random)]
        return [self.globals + int(share * span) for share in shares if span > 0]


@lru_cache(maxsize=64)
def rows_of(layout: str, first: int, blocks: int) -> list[Columns]:
    """``Layout.rows`` of a layout written as JSON."""
    return Layout.model_validate_json(layout).rows(first, blocks)
