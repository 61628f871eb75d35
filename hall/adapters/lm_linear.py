from linear_attention_transformer import LinearAttentionTransformerLM

model = LinearAttentionTransformerLM(
    num_tokens=32, dim=32, heads=2, depth=2, max_seq_len=64, causal=True, blindspot_size=1
)
