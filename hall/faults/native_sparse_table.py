"""native-sparse-attention-pytorch: rotary frequencies that are loaded do not replace a table."""

import torch
from native_sparse_attention_pytorch import SparseAttention

sizes = {"dim": 16, "dim_head": 8, "heads": 2, "sliding_window_size": 2}
blocks = {"compress_block_size": 4, "compress_block_sliding_stride": 2}
more = {"selection_block_size": 4, "num_selected_blocks": 2}
saved, other = (SparseAttention(**sizes, **blocks, **more).eval() for _ in range(2))
other.rotary_emb.freqs.data *= 2
x = torch.randn(2, 6, 16)
other(x)  # keeps a table of its own frequencies
other.load_state_dict(saved.state_dict())
apart = float((other(x) - saved(x)).abs().max())
assert apart == 0, f"after loading, the two differ by {apart:.3g}"
