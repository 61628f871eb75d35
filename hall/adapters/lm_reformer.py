from reformer_pytorch import ReformerLM

model = ReformerLM(
    num_tokens=32, dim=32, depth=2, max_seq_len=64, heads=2, bucket_size=8, causal=True
)
