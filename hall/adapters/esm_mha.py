from esm.multihead_attention import MultiheadAttention

inner = MultiheadAttention(16, 2, self_attention=True)


def attention(x, key_padding_mask=None):
    return inner(x, x, x, key_padding_mask=key_padding_mask)
