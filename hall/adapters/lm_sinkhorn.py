from sinkhorn_transformer import SinkhornTransformerLM

model = SinkhornTransformerLM(
    num_tokens=32, dim=32, depth=2, heads=2, max_seq_len=64, bucket_size=8, causal=True
)
