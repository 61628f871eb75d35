"""ring-attention-pytorch: default_attention drops the padding mask when it is causal."""

import torch
from ring_attention_pytorch.ring_attention import default_attention

torch.manual_seed(0)
q, k, v = torch.randn(3, 1, 6, 2, 8)  # (B, L, H, D)
keep = torch.tensor([[False, True, True, True, True, True]])
loud = v.clone()
loud[:, 0] += 100.0  # the value of the padded key
outs = [default_attention(q, k, x, mask=keep, causal=True)[:, 1:] for x in (v, loud)]
moved = float((outs[0] - outs[1]).abs().max())
assert moved == 0, f"the value of a padded key moves other outputs by {moved:.3g}"
