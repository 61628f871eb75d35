"""fair-esm: a sample that is all padding is NaN."""

import torch
from esm.multihead_attention import MultiheadAttention

torch.manual_seed(0)
attention = MultiheadAttention(16, 2, self_attention=True).eval()
x = torch.randn(5, 2, 16)  # (L, B, E)
padded = torch.zeros(2, 5, dtype=torch.bool)
padded[1] = True
out = attention(x, x, x, key_padding_mask=padded)[0]
assert not out.isnan().any(), f"{int(out.isnan().sum())} of {out.numel()} outputs are NaN"
