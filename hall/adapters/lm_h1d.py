from h_transformer_1d import HTransformer1D

model = HTransformer1D(
    num_tokens=32, dim=32, depth=2, max_seq_len=64, causal=True, heads=2, dim_head=16, block_size=8
)
