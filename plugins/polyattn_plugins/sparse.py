"""Softmax attention over blocks: a block of queries sees whole blocks of keys (``block_sparse``).

    out_i = sum_j softmax_j(scale * q_i . k_j) v_j,     scale = 1/sqrt(D)
    over the keys j with  (floor(p / block), floor(j / block)) in layout,  p = i + S - L

Paper: Zaheer et al., Big Bird, https://arxiv.org/abs/2007.14062 (``bigbird``); Child et al.,
Sparse Transformer, https://arxiv.org/abs/1904.10509 (``strided``, ``fixed``).

Deviations:
- Big Bird's global blocks are the first ones, where the paper's code takes the first and the last:
  so what an earlier token sees does not change when later ones come;
- its random blocks are drawn out of the earlier ones, and see the block that drew them, where the
  paper draws from either side; all heads share them, unless a table is given;
- the two patterns of the Sparse Transformer are one union for all heads (the paper's merged head),
  in blocks rather than tokens, and look ahead as well where the mask does not forbid it;
- a query for which the mask and the layout leave no key gives zeros.

Cost: linear in the length: 4 H D operations for each pair of a query and a key in a block that is
on; under a causal mask, blocks ahead are left out. With a stride, a summary or a table the blocks
that are on may grow with the square of the length. Memory: the output and the logits of one row of
blocks; with gradients also q, k and v.

When not to use it: with blocks of less than some 32 tokens, since each row of blocks is a call of
its own; where a window alone will do (``local_window`` is faster); where nearly all blocks are on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pydantic
import torch
from torch import Tensor

from polyattn import (
    Call,
    Capabilities,
    Inputs,
    Lengths,
    Mask,
    Refusal,
    SequenceAttention,
    Support,
)
from polyattn.kit import repeat_heads
from polyattn_plugins.sparse_kernel import block_sparse_attention
from polyattn_plugins.sparse_layouts import Layout, rows_of

__all__ = ["BlockSparse"]


class BlockSparse(SequenceAttention):
    """Each block of queries sees the blocks of keys that its layout leaves open.

    A mask narrows this further and never widens it.
    """

    capabilities = Capabilities(
        masks=frozenset({"causal", "window", "padding", "segments", "dense", "alibi"}),
        state="key_value",
        devices={"cpu": Support()},
        exactness="exact",
        linear_memory=True,
        rows_sum_to_one=True,
        linear_in_values=True,
        compiles="dynamic",
        exports="dynamic",
    )

    class Config(SequenceAttention.Config):
        """``block``: tokens of a block. ``layout``: ``bigbird``, ``strided``, ``fixed``,
        ``chunked``, a mapping of terms such as {window: 1, random: 3}, or a table of 0 and 1."""

        block: int = pydantic.Field(default=64, ge=1, lt=2**31)
        layout: Layout = Layout.model_validate("bigbird")

    config: Config

    @classmethod
    def examples(cls) -> tuple[Config, ...]:
        terms = Layout(window=1, globals=1, random=2, seed=5, stride=7, chunk=3, summary=1)
        table = [[int((r + 2 * c) % 5 < 2) for c in range(36)] for r in range(36)]
        listed = Layout.model_validate(table)
        return cls.Config(block=3, layout=terms), cls.Config(block=12, layout=listed)

    @classmethod
    def capabilities_for(cls, config: Any) -> Capabilities:
        """A table ends somewhere, and some of its rows may be empty."""
        table = config.layout.table
        if table is None:
            return cls.capabilities
        lengths = Lengths(up_to=len(table[0]) * config.block)
        return replace(cls.capabilities, lengths=lengths)

    def build(self) -> None:
        self._layout = self.config.layout.model_dump_json()

    def pattern(self, queries: int, keys: int, *, device: torch.device) -> Tensor:
        block, layout = self.config.block, self.config.layout
        size = -(-keys // block)
        c = torch.arange(size)
        r = c[:, None]
        on = torch.minimum(r, c) < layout.globals
        if layout.window is not None:
            on = on | ((r - c).abs() <= layout.window)
        if layout.stride:
            on = on | ((r - c) % layout.stride == 0)
        if layout.chunk:
            on = on | (r // layout.chunk == c // layout.chunk)
            on = on | (c % layout.chunk >= layout.chunk - layout.summary)
        for row in range(size):
            draw = Random(f"{layout.seed} {row}")
            span = row - layout.globals - (layout.window or 0)
            for part in range(layout.random):
                share = (part + draw.random()) / layout.random
                if span > 0:
                    column = layout.globals + int(share * span)
                    on[row, column] = on[column, row] = True
        if layout.table is not None:
            on = on | torch.tensor(layout.table)[:, :size, :size].bool()
            on = on[0] if len(layout.table) == 1 else on
        key = torch.arange(keys) // block
        return on[..., key[keys - queries :, None], key].to(device)

    def density(self, queries: int, keys: int) -> float:
        """The share of the blocks that are on, for queries that are the last of the keys."""
        size = -(-keys // self.config.block)
        heads = rows_of(self._layout, (keys - queries) // self.config.block, size)
        counts = [len(columns) for rows in heads for columns in rows]
        return sum(counts) / (len(counts) * size)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        batch, heads, queries, width = q.shape
        keys = k.shape[2]
        kept = mask.only("dense").keep(queries, keys, batch, heads, q.device)
        out: Tensor = block_sparse_attention(
            q,
            repeat_heads(k, heads),
            repeat_heads(v, heads),
            self._layout,
            self.config.block,
            self.scale_for(width),
            *_reach(mask, queries, keys, q.device),
            mask.real,
            *(mask.segment_ids(queries) or (None, None)),
            kept,
            mask.slopes,
        )
        return out

    def refuse(self, call: Call) -> Iterator[Refusal]:
        table = self.config.layout.table
        if table is None or call.sizes is None or len(table) in (1, call.sizes.heads):
            return
        way_out = "give a table for each head, or one for all"
        yield Refusal("heads", call.sizes.heads, f"{len(table)}, those of the table", way_out)

    def refuse_lengths(
        self, queries: int, keys: int, window: tuple[int | None, int | None] | None
    ) -> Iterable[Refusal]:
        """More keys than a table has, and more queries than keys, who would have no position."""
        table, block = self.config.layout.table, self.config.block
        if table is not None and keys > len(table[0]) * block:
            way_out = "give a table of more blocks, or larger ones, or shorten the sequence"
            yield Refusal("length", keys, f"up to {len(table[0]) * block}, its table", way_out)
        if queries > keys:
            way_out = "give at least as many keys as queries, which are the last of them"
            yield Refusal("length", f"L = {queries}, S = {keys}", "L <= S", way_out)


def _reach(mask: Mask, queries: int, keys: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The first and the last key that causality and window leave each query: (L,)."""
    position = torch.arange(queries, device=device) + (keys - queries)
    before, after = mask.span or (None, None)
    first = position - (keys if before is None else before)
    last = position + (keys if after is None else after)
    if mask.prefix is not None:
        last = torch.minimum(last, position.clamp(min=mask.prefix - 1))
    return first, last
