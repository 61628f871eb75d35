"""memory-efficient-attention-pytorch: causal with fewer queries than keys sees the first keys."""

import torch
from memory_efficient_attention_pytorch.memory_efficient_attention import (
    attention,
    memory_efficient_attention,
)

torch.manual_seed(0)
q, k, v = torch.randn(1, 2, 3, 8), torch.randn(1, 2, 9, 8), torch.randn(1, 2, 9, 8)
apart = float(
    (attention(q, k, v, causal=True) - memory_efficient_attention(q, k, v, causal=True)).abs().max()
)
assert apart < 1e-5, f"the package's two functions differ by {apart:.3g} for 3 queries on 9 keys"
