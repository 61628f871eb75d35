"""Softmax attention within packed documents, forward and backward, each as one operator of torch.

An operator, because how many documents there are, and how long, is read from the ids: it must not
decide about the graph that ``torch.compile`` makes. The tokens of a sample are sorted by document,
which packed ones already are; then PyTorch's fused kernel answers one document after the other.

Letters: B batch, H heads, L queries, S keys, D head and value width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from polyattn.kit import as_given, first_derivatives_only

_Slices = dict[int, slice]


@torch.library.custom_op("polyattn_plugins::packed_attention", mutates_args=())
def packed_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_ids: Tensor,
    key_ids: Tensor,
    real: Tensor | None,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Attention of q (B, H, L, D) over those keys (B, H, S, D) whose ids equal the query's.

    ids: (B, L) and (B, S). real: bool (B, S), True = a real key. causal: of them, the keys up to
    the query's own position, i + S - L. Returns: (B, H, L, D), and the log-sum-exp of the logits
    (B, H, L), which means nothing where no key is seen.
    """
    out, lse = _like(q)
    with as_given(q):
        q, k, v = (_readable(x) for x in (q, k, v))
        for sample in range(q.shape[0]):
            pack = _Pack.of(sample, query_ids, key_ids, real, causal)
            q_s, k_s, v_s = pack.sorted(q, k, v)
            out_s, lse_s = torch.zeros_like(q_s), q_s.new_zeros(q_s.shape[:3], dtype=lse.dtype)
            for rows, keys, mask, flag in pack.documents(q.dtype):
                out_s[:, :, rows], lse_s[:, :, rows] = (
                    torch._scaled_dot_product_flash_attention_for_cpu(
                        q_s[:, :, rows],
                        k_s[:, :, keys],
                        v_s[:, :, keys],
                        0.0,
                        flag,
                        attn_mask=mask,
                        scale=scale,
                    )
                )
            out[sample, :, pack.rows] = out_s[0]
            lse[sample, :, pack.rows] = lse_s[0]
    return out, lse


@torch.library.custom_op("polyattn_plugins::packed_attention_backward", mutates_args=())
def packed_attention_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    query_ids: Tensor,
    key_ids: Tensor,
    real: Tensor | None,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v, given that of the output, (B, H, L, D)."""
    dq, dk, dv = (torch.zeros_like(x) for x in (q, k, v))
    with as_given(q):
        grad, q, k, v = (_readable(x) for x in (grad, q, k, v))
        for sample in range(q.shape[0]):
            pack = _Pack.of(sample, query_ids, key_ids, real, causal)
            q_s, k_s, v_s = pack.sorted(q, k, v)
            grad_s, out_s, lse_s = (x[sample : sample + 1, :, pack.rows] for x in (grad, out, lse))
            for rows, keys, mask, flag in pack.documents(q.dtype):
                pieces = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                    grad_s[:, :, rows],
                    q_s[:, :, rows],
                    k_s[:, :, keys],
                    v_s[:, :, keys],
                    out_s[:, :, rows],
                    lse_s[:, :, rows],
                    0.0,
                    flag,
                    attn_mask=mask,
                    scale=scale,
                )
                where = (pack.row(rows), pack.key(keys), pack.key(keys))
                for whole, index, piece in zip((dq, dk, dv), where, pieces, strict=True):
                    whole[sample, :, index] = piece[0]
    return dq, dk, dv


@dataclass(frozen=True)
class _Pack:
    """The documents of one sample. ``rows`` and ``keys``: the tokens, sorted by document."""

    sample: int
    rows: Tensor | slice
    keys: Tensor | slice
    positions: tuple[Tensor, Tensor]
    slices: tuple[_Slices, _Slices]
    causal: bool

    @classmethod
    def of(
        cls, sample: int, query_ids: Tensor, key_ids: Tensor, real: Tensor | None, causal: bool
    ) -> _Pack:
        rows, of_rows = _by_document(query_ids[sample], None)
        keys, of_keys = _by_document(key_ids[sample], None if real is None else real[sample])
        queries, total = query_ids.shape[1], key_ids.shape[1]
        places = rows + (total - queries), keys
        index = _as_slice(rows, queries), _as_slice(keys, total)
        return cls(sample, *index, places, (of_rows, of_keys), causal)

    def sorted(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """This sample's q (1, H, L, D), k and v, in the order of the documents."""
        one = slice(self.sample, self.sample + 1)
        return q[one][:, :, self.rows], k[one][:, :, self.keys], v[one][:, :, self.keys]

    def documents(self, dtype: torch.dtype) -> Iterator[tuple[slice, slice, Tensor | None, bool]]:
        """Of each document with queries and keys: both, and its causality, as mask or as flag."""
        of_rows, of_keys = self.slices
        for document in of_rows.keys() & of_keys.keys():
            rows, keys = of_rows[document], of_keys[document]
            first, second = self.positions[0][rows], self.positions[1][keys]
            if not self.causal:
                yield rows, keys, None, False
            elif torch.equal(first, second):
                yield rows, keys, None, True
            else:
                ahead = second > first[:, None]
                yield rows, keys, torch.zeros(1, dtype=dtype).where(~ahead, -torch.inf), False

    def row(self, rows: slice) -> Tensor | slice:
        """Where a document's queries lie in the sample."""
        return rows if isinstance(self.rows, slice) else self.rows[rows]

    def key(self, keys: slice) -> Tensor | slice:
        """Where a document's keys lie in the sample."""
        return keys if isinstance(self.keys, slice) else self.keys[keys]


def _by_document(ids: Tensor, real: Tensor | None) -> tuple[Tensor, _Slices]:
    """The tokens sorted by document, padded ones left out, and the slice of each document."""
    order = ids.argsort(stable=True)
    if real is not None:
        order = order[real[order]]
    found, counts = torch.unique_consecutive(ids[order], return_counts=True)
    lasts = counts.cumsum(0)
    firsts = (lasts - counts).tolist()
    return order, {
        document: slice(first, last)
        for document, first, last in zip(found.tolist(), firsts, lasts.tolist(), strict=True)
    }


def _as_slice(order: Tensor, total: int) -> Tensor | slice:
    """All tokens as they come, where they do: a view instead of a copy."""
    as_it_is = torch.arange(total, device=order.device)
    return slice(None) if torch.equal(order, as_it_is) else order


def _readable(x: Tensor) -> Tensor:
    """The kernel needs a last stride of 1."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _like(q: Tensor) -> tuple[Tensor, Tensor]:
    exact = torch.float64 if q.dtype == torch.float64 else torch.float32
    return q.new_zeros(q.shape), q.new_zeros(q.shape[:3], dtype=exact)


@packed_attention.register_fake
def _(q: Tensor, *rest: object) -> tuple[Tensor, Tensor]:
    return _like(q)


@packed_attention_backward.register_fake
def _(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: object) -> tuple[Tensor, ...]:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.causal, ctx.scale = inputs
    ctx.save_for_backward(*tensors, *output)


def _gradients(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    q, k, v, query_ids, key_ids, real, out, lse = ctx.saved_tensors
    masks = query_ids, key_ids, real, ctx.causal, ctx.scale
    grads = packed_attention_backward(grad, q, k, v, out, lse, *masks)
    return *grads, None, None, None, None, None


packed_attention.register_autograd(_gradients, setup_context=_keep_for_backward)
packed_attention_backward.register_autograd(first_derivatives_only("packed attention"))
