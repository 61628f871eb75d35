"""nystrom-attention: a sample's output depends on the other samples of its batch."""

import torch
from nystrom_attention import NystromAttention

torch.manual_seed(0)
attention = NystromAttention(dim=16, dim_head=8, heads=2, num_landmarks=4).double().eval()
x = torch.randn(2, 12, 16, dtype=torch.float64)
x[1] *= 30  # another sample, louder
moved = float((attention(x)[:1] - attention(x[:1])).abs().max())
assert moved < 1e-9, f"sample 0 alone and in a batch differ by {moved:.3g}"
