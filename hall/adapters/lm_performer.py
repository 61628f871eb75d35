from performer_pytorch import PerformerLM

model = PerformerLM(num_tokens=32, max_seq_len=64, dim=32, depth=2, heads=2, causal=True)
