"""monai: one sample that is all padding makes every gradient NaN."""

import torch
from monai.networks.blocks.selfattention import SABlock

torch.manual_seed(0)
attention = SABlock(16, 2)
keep = torch.ones(2, 5, dtype=torch.bool)
keep[1] = False
attention(torch.randn(2, 5, 16), attn_mask=keep)[0].sum().backward()  # sample 0 alone
grad = attention.out_proj.weight.grad
assert not grad.isnan().any(), f"{int(grad.isnan().sum())} of {grad.numel()} gradients are NaN"
