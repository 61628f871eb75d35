"""h-transformer-1d: a sequence of one id raises."""

import torch
from h_transformer_1d import HTransformer1D

model = HTransformer1D(
    num_tokens=32, dim=32, depth=1, max_seq_len=64, heads=2, dim_head=16, block_size=8
)
try:
    model(torch.zeros(1, 1, dtype=torch.long))
except ValueError as error:
    raise AssertionError(f"a sequence of one id raises ValueError: {error}") from None
