"""Softmax attention: written out (``dense``), and by PyTorch's fused kernels (``sdpa``, ``flash``).

    out_i = sum_j softmax_j(scale * q_i . k_j + b_ij) v_j,     scale = 1/sqrt(D)

over the keys j that query i may see.

Paper: Vaswani et al., Attention is all you need, https://arxiv.org/abs/1706.03762; the fused
kernel: Dao et al., FlashAttention, https://arxiv.org/abs/2205.14135.

Deviations:
- a query that sees no key gives zeros, where the formula has none and a plain softmax gives NaN;
- where all biases of a row lie below about -1e7 in float32 (finfo.min, say), PyTorch's fused
  kernel rebuilds the weights of that row from a log-sum-exp that lost its log(S) in rounding:
  ``sdpa`` and ``flash`` return the right mean, with gradients S times too large. -inf has no such
  trouble, nor has ``dense``;
- ``dense`` keeps logits and softmax of half types in float32.

Cost: quadratic in the length: 4 H D operations per pair of query and key. Memory: ``dense`` holds
the (L, S) weights; ``sdpa`` and ``flash`` hold blocks of them, unless PyTorch falls back to its
plain kernel (on the CPU: dropout, Dv != D, a bias that needs gradients).

When not to use it: for long sequences where a window or a linear form is enough, since the cost
grows with L times S.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import dropout, scaled_dot_product_attention

from polyattn import (
    PARTS,
    Call,
    Capabilities,
    Inputs,
    Mask,
    Refusal,
    SequenceAttention,
    Support,
    kit,
)
from polyattn_plugins.sdpa_kernel import lowered

__all__ = ["Dense", "Flash", "Sdpa", "SoftmaxConfig"]


_CLAIMS = Capabilities(
    masks=PARTS,
    dropout=True,
    state="key_value",
    exactness="exact",
    rows_sum_to_one=True,
    linear_in_values=True,
    key_order_invariant=True,
    compiles="dynamic",
    exports="dynamic",
)


class SoftmaxConfig(SequenceAttention.Config):
    """The options that every member of the operation ``softmax`` shares."""


class Dense(SequenceAttention):
    """Softmax attention as one would write it on a board: any mask, any bias, any device."""

    capabilities = replace(
        _CLAIMS,
        devices={
            place: Support(double_backward=True, forward_ad=True) for place in ("cpu", "cuda")
        },
    )

    Config = SoftmaxConfig

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        batch, heads, queries, width = q.shape
        keys = k.shape[2]
        exact = kit.accumulation_dtype(q.dtype)
        # Scaling q rather than the logits keeps the product in range.
        logits = (q.to(exact) * self.scale_for(width)) @ k.to(exact).mT
        bias = mask.logit_bias(queries, keys, dtype=exact, device=q.device)
        if bias is not None:
            logits = logits + bias
        keep = mask.keep(queries, keys, batch, heads, q.device)
        weights = kit.masked_softmax(logits, keep)
        if self.dropout_p:
            weights = dropout(weights, self.dropout_p)
        return (weights @ v.to(exact)).to(q.dtype)


class Sdpa(SequenceAttention):
    """``torch.nn.functional.scaled_dot_product_attention``, whichever kernel it takes.

    On the CPU it drops to its plain kernel, which holds the (L, S) weights, with dropout, with
    Dv != D, and with a bias that needs gradients.
    """

    capabilities = replace(_CLAIMS, grouped_heads="native")

    Config = SoftmaxConfig

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        p = self._dropout if self.training else 0.0
        grouped = q.size(1) != k.size(1)
        if mask.is_full:
            if not (p or grouped or self._scale):
                # Keywords alone are a fifteenth of the time of a small call.
                out = scaled_dot_product_attention(q, k, v)
                return out if out.dtype is q.dtype else out.to(q.dtype)  # Under autocast.
            attn_mask, is_causal = None, False
        else:
            attn_mask, is_causal = lowered(mask, q, k)
        if grouped:
            out = scaled_dot_product_attention(
                q, k, v, attn_mask, p, is_causal, scale=self._scale, enable_gqa=True
            )
        else:
            out = scaled_dot_product_attention(q, k, v, attn_mask, p, is_causal, scale=self._scale)
        return out if out.dtype is q.dtype else out.to(q.dtype)


class Flash(SequenceAttention):
    """PyTorch's flash kernel, called by its own operator: this kernel, or a refusal.

    Asking through ``torch.nn.attention.sdpa_kernel`` would set flags of the whole process, which
    two threads cannot do at once.
    """

    capabilities = replace(
        _CLAIMS,
        value_width=False,
        dropout=False,
        devices={
            "cpu": Support(),
            "cuda": Support(dtypes={torch.float16, torch.bfloat16}),
        },
    )

    Config = SoftmaxConfig

    def refuse(self, call: Call) -> Iterable[Refusal]:
        if call.bias_grad:
            way_out = "detach the bias or ask for sdpa or dense"
            yield Refusal("bias", "requires grad", "a bias without gradients", way_out)
        if call.device in _OPERATORS and not hasattr(torch, _OPERATORS[call.device]):
            way_out = "ask for sdpa, or use a torch this version was tested with"
            yield Refusal("torch", torch.__version__, "versions with the flash operator", way_out)
        if call.device == "cuda":
            yield from _refused_on_cuda(call)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        if not q.stride(3) == k.stride(3) == v.stride(3) == 1:
            q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        return _FLASH[q.device.type](q, k, v, mask, self._scale)


_WIDEST = 256
_OPERATORS = {
    "cpu": "_scaled_dot_product_flash_attention_for_cpu",
    "cuda": "_scaled_dot_product_flash_attention",
}


def _flash_on_cpu(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float | None) -> Tensor:
    # The name in `torch`, not in `torch.ops`: a third faster to call.
    kernel = torch._scaled_dot_product_flash_attention_for_cpu
    if mask.is_full:
        return kernel(q, k, v, scale=scale)[0]
    attn_mask, is_causal = lowered(mask, q, k)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = _as_bias(attn_mask, q.dtype)
    return kernel(q, k, v, 0.0, is_causal, attn_mask=attn_mask, scale=scale)[0]


def _refused_on_cuda(call: Call) -> Iterator[Refusal]:
    closed = sorted((call.parts or frozenset()) - {"causal"})
    if closed or call.prefix:
        way_out = "ask for sdpa"
        yield Refusal("mask", closed or "causal prefix", "causal on cuda", way_out)
    width = None if call.sizes is None else call.sizes.head_dim
    if width is not None and (width > _WIDEST or width % 8):
        # The padding to multiples of 8 is done above this operator.
        allowed = f"multiples of 8 up to {_WIDEST} on cuda"
        yield Refusal("head_dim", width, allowed, "ask for sdpa")


def _flash_on_cuda(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float | None) -> Tensor:
    """The CUDA operator knows one mask, causal from the first key on."""
    queries, keys = q.shape[2], k.shape[2]
    causal = mask.prefix is not None and queries > 1
    if causal and queries < keys:
        # Queries in front move ours to the last positions; their rows are thrown away.
        q = torch.nn.functional.pad(q, (0, 0, keys - queries, 0))
    out: Tensor = torch._scaled_dot_product_flash_attention(
        q, k, v, 0.0, causal, False, scale=scale
    )[0]
    return out[:, :, -queries:]


_FLASH = {"cpu": _flash_on_cpu, "cuda": _flash_on_cuda}


def _as_bias(keep: Tensor, dtype: torch.dtype) -> Tensor:
    zeros = torch.zeros((), dtype=dtype, device=keep.device)
    return torch.where(keep, zeros, -torch.inf)
