"""N. Language models: ids to logits, causal, decoded with a cache, as long as they say."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from polyattn.testing.checks.module_attention import CAUSAL_CAUSES, hears_nothing_later
from polyattn.testing.process.contained import words_of
from polyattn.testing.results import Mismatch, Seen, proves
from polyattn.testing.subjects.networks import ModelSubject, Running, described
from polyattn.testing.subjects.steps import agree
from polyattn.testing.tools.numerics import compare_bits, need_finite


@proves(
    "No logit has a gradient to the embedding of a later id.",
    causes=CAUSAL_CAUSES,
)
def check_lm_causality_by_gradient(subject: ModelSubject) -> None:
    running, ids = subject.build(), subject.draw(1, subject.fit(8))
    embedded: list[Tensor] = []

    def caught(module: nn.Module, given: tuple[Tensor, ...], out: Tensor) -> Tensor:
        if embedded or not given or given[0].shape != ids.shape:
            return out
        embedded.append(out.detach().requires_grad_())
        return embedded[0]

    embedding = embedding_of(running.module, ids)
    assert embedding is not None, "asked only where an embedding was found"
    handle = embedding.register_forward_hook(caught)
    try:
        out = running(ids)
    finally:
        handle.remove()
    hears_nothing_later(out, embedded[0], described(ids))


def embedding_of(module: nn.Module, ids: Tensor) -> nn.Embedding | None:
    """The layer that embeds the ids: the first that is called with them. None if there is none."""
    found: list[nn.Embedding] = []

    def noted(layer: nn.Module, given: tuple[Tensor, ...], out: Tensor) -> None:
        same = bool(given) and isinstance(given[0], Tensor) and given[0].shape == ids.shape
        if same and isinstance(layer, nn.Embedding) and torch.equal(given[0], ids):
            found.append(layer)

    handles = [
        layer.register_forward_hook(noted)
        for layer in module.modules()
        if isinstance(layer, nn.Embedding)
    ]
    try:
        with torch.no_grad():
            module(ids)
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found else None


CHUNKS: dict[str, tuple[int, ...]] = {"token_by_token": (1,) * 9, "3-5-1": (3, 5, 1), "1-8": (1, 8)}


@proves(
    "Decoded with its cache, in any chunks, it gives the logits of one call for the whole.",
    causes=(
        "positions that begin at 0 again in every chunk",
        "a causal mask of the new tokens alone, aligned at the first key",
        "keys that are turned or normalised twice, or not at all, once they are cached",
    ),
)
def check_lm_cached_decoding(subject: ModelSubject, chunks: tuple[int, ...]) -> None:
    running, ids = subject.build(), subject.draw(2, sum(chunks))
    want, cache, done = running.quiet(ids), None, 0
    assert subject.caching is not None, "asked only where it decodes with a cache"
    for many in chunks:
        got, cache = subject.caching.decode(running, ids[:, done : done + many], cache)
        told = f"the output of {many} new {'id' if many == 1 else 'ids'} after {done}"
        agree(told, got, want[:, done : done + many], given=described(ids), factor=64.0)
        done += many


@proves(
    "Generations do not disturb each other: a cache belongs to one of them, and a new one starts "
    "clean.",
    causes=(
        "a cache kept on the module or as a default argument",
        "a cache that is written to in place, and shared by two continuations",
    ),
)
def check_lm_cache_isolation(subject: ModelSubject) -> None:
    running = subject.build()
    caching = subject.caching
    assert caching is not None, "asked only where it decodes with a cache"
    ids, others = subject.draw(2, 7), subject.draw(2, 7, seed=1)
    # One id at a time, after the first: more of them is another property.
    want, given, new = running.quiet(ids), described(ids), slice(6, 7)
    first, cache = caching.decode(running, ids[:, :6])
    _, other = caching.decode(running, others[:, :6])
    caching.decode(running, others[:, new], other)
    # Some caches grow in place, as those of transformers do: whoever forks them copies them.
    twin = copy.deepcopy(cache)
    got, after = caching.decode(running, ids[:, new], cache)
    told = "the output of a generation, another one between its steps,"
    agree(told, got, want[:, new], given=given, factor=64.0)
    if after is not cache:
        again, _ = caching.decode(running, ids[:, new], cache)
        agree("the output for the same cache again", again, got, given=given)
    again, _ = caching.decode(running, ids[:, new], twin)
    agree("the output for a copy of the cache", again, got, given=given)
    again, _ = caching.decode(running, ids[:, :6])
    agree("the output of a new generation", again, first, given=given)
    told = "the output without a cache, after generations,"
    compare_bits(told, running.quiet(ids), want, given=given)


@proves(
    "At the greatest length that it takes it is as right as elsewhere; beyond, it refuses or goes "
    "on, and is afterwards as it was.",
    causes=(
        "a mask or a table that is one too short",
        "positions that are clamped or wrap around in silence",
        "a state that a refused call leaves behind",
    ),
)
def check_lm_longest(subject: ModelSubject) -> None:
    running, ids = subject.build(), subject.draw(1, subject.limit or LONG)
    short, length = ids[:, :8], ids.shape[1]
    before, out = running.quiet(short), running.quiet(ids)
    need_finite("the output", out, described(ids))
    prefixes = {8, length // 2, length - 1} if subject.causal else set[int]()
    for t in sorted(prefixes & set(range(1, length))):
        told = f"the first {t} logits of a long sequence, against those of its beginning alone,"
        agree(told, out[:, :t], running.quiet(ids[:, :t]), given=described(ids))
    if subject.limit is not None:
        longer = subject.draw(1, length + 1)
        got = _answer(running, longer)
        if got is not None:
            need_finite("the output", got, described(longer))
            if subject.causal:
                _hears_its_places(running, longer, got)
        compare_bits("the output afterwards", running.quiet(short), before, given=described(short))


LONG = 64


def _answer(running: Running, ids: Tensor) -> Tensor | None:
    try:
        return running.quiet(ids)
    except Mismatch:
        return None


def _hears_its_places(running: Running, ids: Tensor, got: Tensor) -> None:
    """Beyond its limit a prefix must still be that of the whole; what is cut off shows."""
    alone = running.quiet(ids[:, :-1])
    told = "the output up to the limit, one id beyond it,"
    agree(told, got[:, :-1], alone, given=described(ids))


@proves(
    "A sequence that is too long is refused in words that say so.",
    causes=("an index error from the table of positions", "an assertion without a message"),
)
def check_lm_refuses_clearly(subject: ModelSubject) -> None:
    assert subject.limit is not None, "asked only where there is a limit"
    running, ids = subject.build(), subject.draw(1, subject.limit + 1)
    try:
        running.quiet(ids)
    except Mismatch as mismatch:
        error = mismatch.__cause__
        # In which words it is for its author to say: that of a table names no length to anybody.
        if isinstance(error, LookupError | None) or not words_of(error).strip():
            what = f"beyond {subject.limit} ids {mismatch.seen.what}"
            raise Mismatch(Seen(what=what, given=described(ids))) from error
