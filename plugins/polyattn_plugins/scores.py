"""Softmax attention with other scores than the scaled product of query and key.

    out_i = sum_j softmax_j(score_ij + b_ij) v_j

    dot        score_ij = q_i . k_j
    general    score_ij = q_i . W k_j / sqrt(D)                   W learned, (H, D, D)
    cosine     score_ij = g q_i . k_j / (|q_i| |k_j|)             g learned, (H,)
    additive   score_ij = w . tanh(A q_i + B k_j)                 A, B, w learned, E hidden units

over the keys j that query i may see.

Paper: ``dot`` and ``general``: Luong et al., Effective Approaches to Attention-based Neural Machine
Translation, https://arxiv.org/abs/1508.04025; ``cosine``: Henry et al., Query-Key Normalization for
Transformers, https://arxiv.org/abs/2010.04245; ``additive``: Bahdanau et al., Neural Machine
Translation by Jointly Learning to Align and Translate, https://arxiv.org/abs/1409.0473.

Deviations:
- each head has parameters of its own; the papers of ``general`` and ``additive`` have one head, and
  that of ``cosine`` one g for all heads;
- ``general`` has the scale of softmax attention, which it is where W is the identity, its start;
- ``cosine`` starts from a g that is an option, which the paper takes from the length of its
  sentences; the cosine with a vector of zeros is 0, with zero gradients;
- ``general`` and ``cosine`` round what they make of q and k to a half type before the product;
- ``additive`` adds no constant in the hidden layer: a projection with a bias does.

Cost: quadratic in the length: 4 H D operations per pair of query and key, for ``additive`` E tanh
and 2 E + 2 Dv operations of each head. Memory: ``additive`` holds the (L, S) weights and the hidden
layer of eight queries, in the backward pass as well; the others what PyTorch's fused attention
holds.

When not to use it: ``dot`` where D is large, since its logits grow with sqrt(D); ``cosine`` where
the length of a query has something to say; ``additive`` on long sequences.
"""

from __future__ import annotations

import pydantic
import torch
from torch import Tensor, nn

from polyattn import PARTS, Capabilities, Inputs, Mask, Options, SequenceAttention, kit
from polyattn_plugins.logits_kernel import weighted
from polyattn_plugins.scores_kernel import additive_logits
from polyattn_plugins.sdpa_kernel import softmax_of_products

__all__ = ["Additive", "Cosine", "Dot", "General"]

_CLAIMS = Capabilities(
    masks=PARTS,
    grouped_heads="native",
    dropout=True,
    state="key_value",
    exactness="own kernel",
    rows_sum_to_one=True,
    linear_in_values=True,
    key_order_invariant=True,
    compiles="dynamic",
    exports="dynamic",
)


class _Unscaled(SequenceAttention):
    """What its members have in common: their score is the logit."""

    capabilities = _CLAIMS

    class Config(Options):
        """``dropout``: on the attention weights, in training only."""

        dropout: float = pydantic.Field(default=0.0, ge=0, lt=1)

    def scale_for(self, head_dim: int) -> float:
        """No factor."""
        return 1.0


class Dot(_Unscaled):
    """The product of query and key as it is."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        return softmax_of_products(q, k, v, mask, 1.0, self.dropout_p)


class General(SequenceAttention):
    """A learned bilinear form of query and key, one for each head."""

    capabilities = _CLAIMS

    def build(self) -> None:
        sizes = self.require_sizes()
        self.form = nn.Parameter(torch.eye(sizes.head_dim).repeat(sizes.heads, 1, 1))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        exact = kit.accumulation_dtype(q.dtype)
        turned = (q.to(exact) @ self.form.to(exact)).to(q.dtype)
        return softmax_of_products(turned, k, v, mask, self.scale_for(q.shape[3]), self.dropout_p)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        turned = torch.einsum("bhld,hde->bhle", q, self.form.to(q.dtype))
        return super().reference(turned, k, v, mask, inputs)


class Cosine(_Unscaled):
    """The cosine of query and key, times a learned gain of each head."""

    class Config(_Unscaled.Config):
        """``gain``: the factor of the cosines that every head starts from."""

        gain: float = pydantic.Field(default=10.0, gt=0)

    config: Config

    def build(self) -> None:
        self.gain = nn.Parameter(torch.full((self.require_sizes().heads,), self.config.gain))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        gain = self.gain[:, None, None]
        unit_q, unit_k = (gain * _unit(q)).to(q.dtype), _unit(k).to(k.dtype)
        return softmax_of_products(unit_q, unit_k, v, mask, 1.0, self.dropout_p)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        squares = (x.square().sum(-1, keepdim=True) for x in (q, k))
        # A vector of zeros is divided by infinity.
        shares = (torch.where(square > 0, square, torch.inf).rsqrt() for square in squares)
        q, k = (x * share for x, share in zip((q, k), shares, strict=True))
        gain = self.gain.to(q.dtype)[:, None, None]
        return super().reference(gain * q, k, v, mask, inputs)


class Additive(_Unscaled):
    """A network with one hidden layer compares query and key, one network for each head."""

    class Config(_Unscaled.Config):
        """``hidden``: hidden units of the network of each head; None takes the head width."""

        hidden: int | None = pydantic.Field(default=None, ge=1, lt=2**31)

    config: Config

    @classmethod
    def examples(cls) -> tuple[Config, ...]:
        return (cls.Config(hidden=5),)

    def build(self) -> None:
        sizes = self.require_sizes()
        hidden = self.config.hidden or sizes.head_dim
        # A row for each head and hidden unit.
        self.query_weight = nn.Linear(sizes.head_dim, sizes.heads * hidden, bias=False).weight
        self.key_weight = nn.Linear(sizes.head_dim, sizes.heads * hidden, bias=False).weight
        self.output_weight = nn.Linear(hidden, sizes.heads, bias=False).weight

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        exact = kit.accumulation_dtype(q.dtype)
        w = self.output_weight.to(exact)
        with kit.as_given(q):
            a = q.to(exact) @ self.query_weight.to(exact).view(*w.shape, -1).mT
            grouped = self.key_weight.to(exact).view(k.shape[1], -1, w.shape[1], k.shape[3])
            b = torch.einsum("bgsd,gred->bgrse", k.to(exact), grouped).flatten(1, 2)
            logits = additive_logits(a, b, w)
            return weighted(logits, v, mask, self.dropout_p).to(q.dtype)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        heads, w = q.shape[1], self.output_weight
        k, v = (x.repeat_interleave(heads // x.shape[1], dim=1) for x in (k, v))
        queries, keys = (
            torch.einsum("bhnd,hed->bhne", x, weight.view(*w.shape, x.shape[3]))
            for x, weight in ((q, self.query_weight), (k, self.key_weight))
        )
        hidden = (queries[:, :, :, None] + keys[:, :, None]).tanh()
        score = torch.einsum("bhlse,he->bhls", hidden, w)
        return super().reference(torch.zeros_like(q), k, v, mask & Mask.bias(score), inputs)


def _unit(x: Tensor) -> Tensor:
    """x of length 1, in the dtype of sums; a vector of zeros stays that, with zero gradients."""
    x = x.to(kit.accumulation_dtype(x.dtype))
    return kit.safe_divide(x, torch.linalg.vector_norm(x, dim=-1, keepdim=True))
