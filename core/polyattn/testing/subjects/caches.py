"""How language models from elsewhere decode with a cache."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from polyattn.testing.results import Mismatch, Seen
from polyattn.testing.subjects.networks import Running, described, picked
from polyattn.testing.subjects.sequence import blaming
from polyattn.testing.tools.numerics import need_shape

CACHE_NAMES = ("past_key_values", "past_key_value", "past", "cache", "kv_cache", "state")


@dataclasses.dataclass(frozen=True)
class Caching:
    """argument: ``model(ids, past=cache)`` gives the logits and the next cache; ``use_cache=True``
    asks for it where there is such a flag. extend: ``new_state(batch)``, then
    ``extend(ids, state)``, as polyattn's own models have it."""

    style: Literal["argument", "extend"]
    argument: str = ""
    flag: str | None = None

    def __str__(self) -> str:
        if self.style == "extend":
            return "it decodes with new_state() and extend()"
        flag = f", asked for by {self.flag}=True" if self.flag else ""
        return f"it decodes with a cache in {self.argument}{flag}"

    def decode(self, running: Running, ids: Tensor, cache: Any = None) -> tuple[Tensor, Any]:
        """The logits of these ids after those that the cache (None: nothing) has seen, and the
        cache after them. Raises: Mismatch."""
        given = f"{described(ids)}, {'the first' if cache is None else 'with a cache'}"
        with blaming(given), torch.no_grad():
            logits, cache = self.raw(running, ids, cache)
        if cache is None:
            raise Mismatch(Seen(what="it gives no cache", given=given))
        if isinstance(logits, Tensor):
            logits = running.subject.open_columns(logits, given)
        expected = (*ids.shape, running.subject.out_width)
        return need_shape("the output", logits, expected, given), cache

    def raw(self, running: Running, ids: Tensor, cache: Any = None) -> tuple[Any, Any]:
        """The same, whatever comes of it."""
        model: Any = running.function
        ids = ids.contiguous()
        if self.style == "extend":
            cache = model.new_state(len(ids), dtype=running.dtype) if cache is None else cache
            logits, cache = model.extend(ids, cache)
            return logits, cache
        keywords: dict[str, Any] = {self.flag: True} if self.flag else {}
        if cache is not None:
            keywords[self.argument] = cache
        got = model(ids, **keywords)
        return picked(got), cache_of(got, self.argument)


def cache_of(got: Any, name: str) -> Any:
    """The cache in what a model gives: by its name, or the second entry of a tuple."""
    if isinstance(got, Mapping):
        return got.get(name)
    if getattr(got, name, None) is not None:
        return getattr(got, name)
    return got[1] if isinstance(got, tuple | list) and len(got) > 1 else None
