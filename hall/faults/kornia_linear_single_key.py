"""kornia: linear attention over a single key does not give its value."""

import torch
from kornia.feature.loftr.loftr_module.linear_attention import LinearAttention

torch.manual_seed(0)
q, k, v = torch.randn(3, 1, 1, 1, 8, dtype=torch.float64) - 8  # small features
out = LinearAttention()(q, k, v)
apart = float(((out - v) / v).abs().max())
assert apart < 1e-9, f"the weight of a single key is wrong by {apart:.3g} of itself"
