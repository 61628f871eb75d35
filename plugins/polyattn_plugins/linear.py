"""Linear attention: a feature map in the place of the softmax, so that sums replace the weights.

    out_i = phi(q_i) S_i / (phi(q_i) . z_i)         phi(x) = elu(x) + 1
    S_i = sum_j phi(k_j) v_j^T     z_i = sum_j phi(k_j)     over the keys j that query i may see

Paper: Katharopoulos et al., Transformers are RNNs, https://arxiv.org/abs/2006.16236.

Deviations:
- phi is computed as exp(x) below zero: elu(x) + 1 rounds to 0 from -17.5 on in float32, and from
  -6 on in bfloat16; there the paper's own code divides zero by zero;
- a query whose entries are all negative is moved up to a largest entry of 0, which leaves the
  quotient as it is: no query is too small. Keys cannot be moved one by one; in float32 they may
  go down to -87 before their features vanish;
- no epsilon in the denominator: rows sum to one. A query that sees no key gives zeros;
- there is no `scale`: the paper has none, and a query's factor would not cancel inside phi.

Cost: linear in the length: 4 H D Dv operations per token, and as many again for the pairs within
a chunk of 64.
Memory: the output. Decoding keeps a (D, Dv) matrix and a vector for each key head, whatever the
length.

When not to use it: for short sequences (below some hundred tokens softmax is as fast), and where
a query must find one key among many (copying, retrieval): phi cannot focus as softmax does.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from polyattn import (
    Capabilities,
    Inputs,
    Mask,
    Options,
    RecurrentState,
    SequenceAttention,
    Sizes,
    State,
    kit,
)
from polyattn_plugins.linear_kernel import absorb, read, scan

__all__ = ["Linear"]

_TINY = {dtype: torch.finfo(dtype).tiny for dtype in (torch.float32, torch.float64)}


class Linear(SequenceAttention):
    """Attention with the kernel phi(q) . phi(k), phi = elu + 1; causal, or over all keys."""

    capabilities = Capabilities(
        masks={"causal", "padding"},
        grouped_heads="native",
        state="recurrent",
        exactness="own kernel",
        linear_memory=True,
        rows_sum_to_one=True,
        linear_in_values=True,
        key_order_invariant=True,
        compiles="dynamic",
        exports="dynamic",
    )

    class Config(Options):
        """No options: neither a scale nor a dropout has a meaning without logits."""

    config: Config

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        if mask.prefix is None:
            out: Tensor = read(q, *absorb(k, v, mask.real, *_empty(k, v)))[0]
            return out
        return _causal(q, k, v, mask.real, mask.prefix)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        def phi(x: Tensor) -> Tensor:
            return torch.where(x > 0, x + 1, torch.exp(torch.where(x > 0, 0, x)))

        batch, heads, queries, keys = *q.shape[:3], k.shape[2]
        k, v = (x.repeat_interleave(heads // x.shape[1], dim=1) for x in (k, v))
        weights = torch.einsum("bhld,bhsd->bhls", phi(q), phi(k))
        keep = mask.keep(queries, keys, batch, heads, q.device)
        weights = weights if keep is None else torch.where(keep, weights, 0.0)
        total = weights.sum(-1, keepdim=True)
        return torch.einsum("bhls,bhsv->bhlv", weights / torch.where(total > 0, total, 1.0), v)

    def start(
        self, batch: int, sizes: Sizes | None, *, dtype: torch.dtype, device: torch.device
    ) -> State:
        """The sums over no key: s (B, Hkv, D, Dv) and z (B, Hkv, 1, D)."""
        sizes = sizes or self.require_sizes()
        none = torch.empty(0, dtype=kit.accumulation_dtype(dtype), device=device)
        s = none.new_zeros(batch, sizes.kv_heads, sizes.head_dim, sizes.value_dim)
        z = none.new_zeros(batch, sizes.kv_heads, 1, sizes.head_dim)
        return RecurrentState(0, {"s": s, "z": z})

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, state: Any, mask: Mask, inputs: Inputs
    ) -> tuple[Tensor, State]:
        s, z = state.tensors["s"], state.tensors["z"]
        tokens = q.shape[2]
        if tokens > 1 or _tracked(q, k, v, s):
            out, _, s, z = scan(q, k, v, mask.real, s, z)
        else:
            with kit.as_given(q):
                out, s, z = _one_token(q, k, v, mask.real, s, z)
        return out, state.advance(tokens, {"s": s, "z": z})


def _tracked(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)


def _empty(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The state s, z before any key."""
    batch, heads, _, width = k.shape
    exact = kit.accumulation_dtype(k.dtype)
    s = k.new_zeros(batch, heads, width, v.shape[3], dtype=exact)
    return s, k.new_zeros(batch, heads, 1, width, dtype=exact)


def _causal(q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, prefix: int) -> Tensor:
    """The queries are the last L of S, and all see the first `prefix` keys.

    So some keys are seen by every query, some queries see nothing beyond those, and what is left
    is a square.
    """
    queries, keys = q.shape[2], k.shape[2]
    shared = max(keys - queries, min(prefix, keys), 0)
    early = shared - (keys - queries)
    s, z = _empty(k, v)
    if shared:
        seen = None if keep is None else keep[:, :shared]
        s, z = absorb(k[:, :, :shared], v[:, :, :shared], seen, s, z)
        k, v, keep = k[:, :, shared:], v[:, :, shared:], None if keep is None else keep[:, shared:]
    outs = [read(q[:, :, :early], s, z)[0]] if early else []
    if early < queries:
        outs.append(scan(q[:, :, early:], k, v, keep, s, z)[0])
    return outs[0] if len(outs) == 1 else torch.cat(outs, dim=2)


def _one_token(
    q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, s: Tensor, z: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """One token without gradients, in few operations: each costs more than its arithmetic."""
    dtype, shape = q.dtype, q.shape
    if dtype != s.dtype:
        q, k, v = q.to(s.dtype), k.to(s.dtype), v.to(s.dtype)
    if shape[1] != k.shape[1]:
        q = q.reshape(shape[0], k.shape[1], -1, shape[3])
    asked, mapped = q.clamp(max=0), k.clamp(max=0)
    # The factor that keeps a small query in range cancels, as in Chunks.queries.
    asked.sub_(asked.amax(-1, keepdim=True)).exp_().add_(q.relu())
    mapped.exp_().add_(k.relu())
    if keep is not None:
        mapped.mul_(keep[:, None, None])
    s, z = torch.addcmul(s, mapped.mT, v), z + mapped
    # 0 / tiny is 0, where no key was seen; every other denominator is larger.
    den = (asked * z).sum(-1, keepdim=True).clamp_(_TINY[z.dtype])
    out = (asked @ s).div_(den)
    if dtype != s.dtype or shape[1] != k.shape[1]:
        out = out.reshape(*shape[:3], v.shape[3]).to(dtype)
    return out, s, z
