"""N. Attention functions in the style of transformers: what their callers rely on."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from polyattn.testing.doors.hf_functions import HfFunction, lowered, stand_in
from polyattn.testing.results import Mismatch, Seen, proves
from polyattn.testing.subjects.sequence import blaming
from polyattn.testing.tools.cases import normal
from polyattn.testing.tools.numerics import compare, need_finite, need_shape, need_tensor

CLOSE = 1e-4
"""In float32, on values of magnitude one."""


def drawn(*, queries: int = 5, keys: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    """q (2, 4, L, 8), k and v in float32."""
    sizes = (queries, keys, keys)
    q, k, v = (normal(2, 4, size, 8, seed=85 + i).float() for i, size in enumerate(sizes))
    return q, k, v


def _given(q: Tensor, k: Tensor, **more: Any) -> str:
    told = "".join(f", {name}={value}" for name, value in more.items())
    return f"q {tuple(q.shape)}, k and v {tuple(k.shape)}, float32{told}"


def _closed_after(queries: int, keys: int, window: int | None = None) -> Tensor:
    """Additive (1, 1, L, S): causal for the last queries, within a window of so many keys."""
    keep = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
    if window is not None:
        keep &= ~keep.tril(keys - queries - window)
    return torch.zeros(1, 1, queries, keys).masked_fill(~keep, -torch.inf)


@proves(
    "It gives (output (B, L, H, D), weights or None), for any lengths.",
    causes=(
        "the output left as (B, H, L, D): return out.transpose(1, 2).contiguous()",
        "the output alone, without the weights beside it",
        "heads merged: the caller does that",
        "an argument that transformers passes by keyword is not taken: add **kwargs",
    ),
)
def check_hf_output(function: HfFunction) -> None:
    for queries, keys in ((5, 5), (5, 7), (3, 3)):
        q, k, v = drawn(queries=queries, keys=keys)
        given = _given(q, k)
        mask = _closed_after(queries, keys)
        with blaming(given), torch.no_grad():
            got = function.function(
                stand_in(q, k),
                q,
                k,
                v,
                lowered(mask),
                dropout=0.0,
                scaling=8**-0.5,
                sliding_window=None,
                position_ids=torch.arange(keys)[None],
                use_cache=False,
                output_attentions=False,
                cache_position=torch.arange(keys),
            )
        if not isinstance(got, tuple | list) or len(got) != 2:
            what = f"it gives a {type(got).__name__}, expected the pair (output, weights)"
            raise Mismatch(Seen(what=what, given=given))
        out = need_shape("the output", got[0], (2, queries, 4, 8), given)
        need_finite("the output", out, given)


@proves(
    "The layer that calls it is as it was afterwards.",
    causes=(
        "module.is_causal or module.training set in passing",
        "a mask, keys or weights kept on the layer",
    ),
)
def check_hf_module_untouched(function: HfFunction) -> None:
    q, k, v = drawn()
    for mask in (None, _closed_after(5, 5)):
        layer = stand_in(q, k, is_causal=mask is None)
        before = dict(vars(layer)), dict(vars(layer.config))
        with blaming(_given(q, k)), torch.no_grad():
            function(q, k, v, mask, layer=layer)
        now = dict(vars(layer)), dict(vars(layer.config))
        for old, new in zip(before, now, strict=True):
            changed = sorted(x for x in old.keys() | new.keys() if old.get(x) is not new.get(x))
            if changed:
                what = f"{', '.join(changed)} of the layer changed"
                raise Mismatch(Seen(what=what, given=_given(q, k)))


@proves(
    "The logits are multiplied by scaling, and by nothing else.",
    causes=(
        "1/sqrt(D) written into the code, whatever scaling says: Gemma and others differ",
        "scaling applied beside 1/sqrt(D)",
    ),
)
def check_hf_scaling(function: HfFunction) -> None:
    q, k, v = drawn()
    given = _given(q, k, scaling=0.7)
    with blaming(given), torch.no_grad():
        got = function(q, k, v, scaling=0.7)
        want = function(q * (0.7 / 8**-0.5), k, v, scaling=8**-0.5)
    told = "the output for another scaling, against q multiplied beforehand,"
    compare(told, got, need_tensor("the output", want), tolerance=CLOSE, given=given)


@proves(
    "One new query sees every key, though module.is_causal is set and no mask is given: so "
    "transformers decodes with a cache.",
    causes=(
        "is_causal=module.is_causal handed to a kernel that aligns at the first key: the query "
        "sees key 0 alone; add `and q.shape[2] > 1`",
        "tril(L, S) without diagonal=S - L",
    ),
)
def check_hf_decoding_step(function: HfFunction) -> None:
    q, k, v = drawn(queries=1, keys=7)
    given = _given(q, k, is_causal=True)
    with blaming(given), torch.no_grad():
        got = function(q, k, v, is_causal=True)
        want = function(q, k, v, torch.zeros(1, 1, 1, 7))
    told = "the output of a decoding step, against that for a mask that is open,"
    compare(told, got, need_tensor("the output", want), tolerance=CLOSE, given=given)


WINDOW = 3


@proves(
    "sliding_window=W beside the mask that says the same changes nothing: W keys, the query's own "
    "among them.",
    causes=(
        "a window of W keys before the query's own: one too many, or W - 1 keys: one too few",
        "sliding_window is no argument: add it, or **kwargs",
    ),
)
def check_hf_sliding_window(function: HfFunction) -> None:
    q, k, v = drawn(queries=7, keys=7)
    mask = _closed_after(7, 7, WINDOW)
    given = _given(q, k, sliding_window=WINDOW)
    with blaming(given), torch.no_grad():
        want = need_tensor("the output", function(q, k, v, mask))
        got = function(q, k, v, mask, sliding_window=WINDOW)
        bare = function(q, k, v, is_causal=True, sliding_window=WINDOW)
        causal = function(q, k, v, is_causal=True)
    told = "the output with sliding_window, against that for the same mask without,"
    compare(told, got, want, tolerance=CLOSE, given=given)
    if not torch.allclose(bare, causal, atol=CLOSE):
        told = "the output with sliding_window and no mask, against that for the mask,"
        compare(told, bare, want, tolerance=CLOSE, given=given)


@proves(
    "Weights that are given are those that made the output: (B, H, L, S), rows that sum to one.",
    causes=(
        "the logits, or the weights before the mask, returned in their place",
        "weights averaged over the heads",
    ),
)
def check_hf_weights(function: HfFunction) -> None:
    q, k, v = drawn(queries=5, keys=7)
    mask = _closed_after(5, 7)
    given = _given(q, k)
    with blaming(given), torch.no_grad():
        out, weights = function.pair(q, k, v, mask)
    if weights is None:
        return
    found = need_shape("the weights", weights, (2, 4, 5, 7), given).float()
    sums = found.sum(-1)
    compare("the sum of a row", sums, torch.ones_like(sums), tolerance=CLOSE, given=given)
    want = found @ v
    told = "the output, against its weights times the values,"
    compare(told, out, want, tolerance=CLOSE, given=given)


DRAWS = 400


@proves(
    "dropout=p drops weights in training and leaves the mean as it is.",
    causes=(
        "dropout is ignored in silence",
        "the weights that are kept are not divided by 1 - p",
    ),
)
def check_hf_dropout(function: HfFunction) -> None:
    q, k, v = (x[:, :, :1] if i == 0 else x for i, x in enumerate(drawn()))
    given = _given(q, k, dropout=0.5)
    with blaming(given), torch.no_grad():
        layer = stand_in(q, k, training=True)
        plain = need_tensor("the output", function(q, k, v, layer=layer))
        torch.manual_seed(0)
        outs = torch.stack(
            [function(q, k, v, dropout=0.5, layer=layer) for _ in range(DRAWS)]
        ).double()
    if bool((outs == outs[0]).all()):
        raise Mismatch(Seen(what="dropout=0.5 in training changes nothing", given=given))
    spread = outs.std(0) / DRAWS**0.5
    compare(
        f"the mean of {DRAWS} outputs",
        outs.mean(0),
        plain,
        tolerance=6.0 * float(spread.max()),
        given=given,
    )
