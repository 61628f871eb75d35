from fightingcv_attention.attention.SelfAttention import ScaledDotProductAttention

inner = ScaledDotProductAttention(d_model=16, d_k=8, d_v=8, h=2, dropout=0.0)


def attention(x):
    return inner(x, x, x)
