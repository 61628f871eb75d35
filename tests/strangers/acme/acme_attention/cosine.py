"""Softmax over cosine similarity: weights_ij = softmax_j(temperature * cos(q_i, k_j)).

Paper: Henry et al., Query-Key Normalization for Transformers, https://arxiv.org/abs/2010.04245.
Deviation: the temperature is an option, not learned. Cost: as softmax. When not to use it: where
the length of a query has something to say.
"""

import pydantic
import torch
from torch import Tensor
from torch.nn.functional import normalize

from polyattn import Capabilities, Inputs, Mask, Options, SequenceAttention, kit


class Cosine(SequenceAttention):
    """Keys are compared by their direction alone."""

    capabilities = Capabilities(
        masks={"causal", "window", "padding", "segments", "dense"},
        state="key_value",
        exactness="own kernel",
        rows_sum_to_one=True,
        linear_in_values=True,
        key_order_invariant=True,
    )

    class Config(Options):
        """``temperature``: the factor of the cosines."""

        temperature: float = pydantic.Field(default=10.0, gt=0)

    config: Config

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        exact = kit.accumulation_dtype(q.dtype)
        unit_q, unit_k = (normalize(x.to(exact), dim=-1) for x in (q, k))
        logits = self.config.temperature * unit_q @ unit_k.mT
        batch, heads, queries, keys = logits.shape
        weights = kit.masked_softmax(logits, mask.keep(queries, keys, batch, heads, q.device))
        return (weights @ v.to(exact)).to(q.dtype)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        unit_q = q / q.square().sum(-1, keepdim=True).sqrt()
        unit_k = k / k.square().sum(-1, keepdim=True).sqrt()
        odds = (self.config.temperature * torch.einsum("bhld,bhsd->bhls", unit_q, unit_k)).exp()
        keep = mask.keep(q.shape[2], k.shape[2], q.shape[0], q.shape[1], q.device)
        odds = odds if keep is None else odds * keep
        total = odds.sum(-1, keepdim=True)
        return torch.einsum("bhls,bhsv->bhlv", odds / total.where(total > 0, 1.0), v)
