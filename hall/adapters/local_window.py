from local_attention import LocalAttention

attention = LocalAttention(
    window_size=4, causal=True, exact_windowsize=True, use_rotary_pos_emb=False, dim=8
)
