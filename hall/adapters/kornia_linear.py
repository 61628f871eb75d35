from kornia.feature.loftr.loftr_module.linear_attention import LinearAttention

inner = LinearAttention()


def attention(q, k, v, kv_mask=None):
    return inner(q, k, v, kv_mask=kv_mask)
