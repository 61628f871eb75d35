"""Causal attention as one might have it lying around, with one fault in it: can you see it?"""

import torch


def attend(q, k, v):
    logits = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    future = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).triu(1)
    weights = logits.masked_fill(future, -1e4).softmax(dim=-1)
    return weights @ v
