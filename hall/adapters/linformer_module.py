from linformer import LinformerSelfAttention

attention = LinformerSelfAttention(dim=16, seq_len=64, heads=2, k=8)
