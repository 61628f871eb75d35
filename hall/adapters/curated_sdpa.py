from curated_transformers.layers.attention import AttentionMask, ScaledDotProductAttention

inner = ScaledDotProductAttention(dropout_prob=0.0, linear_biases=None)


def attention(q, k, v, key_mask=None, causal=False):
    keep = q.new_ones(k.shape[0], k.shape[2]).bool() if key_mask is None else key_mask
    mask = AttentionMask(keep)
    return inner(query=q, key=k, value=v, attention_mask=mask, use_causal_mask=causal)
