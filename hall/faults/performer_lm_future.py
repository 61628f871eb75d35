"""performer-pytorch: a causal language model's logits depend on later ids."""

import torch
from performer_pytorch import PerformerLM

torch.manual_seed(0)
model = PerformerLM(num_tokens=32, max_seq_len=64, dim=32, depth=2, heads=2, causal=True)
model = model.double().eval()
ids = torch.arange(16)[None]
other = torch.cat([ids[:, :8], 31 - ids[:, 8:]], 1)
moved = float((model(ids) - model(other))[:, :8].abs().max())
assert moved < 1e-9, f"logits before position 8 move by {moved:.3g} with the ids after it"
