from linear_attention_transformer.linear_attention_transformer import causal_linear_attn


def attention(q, k, v, kv_mask=None):
    return causal_linear_attn(q, k, v, kv_mask=kv_mask, bucket_size=2)
