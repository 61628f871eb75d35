from torch.nn import MultiheadAttention

inner = MultiheadAttention(16, 2, batch_first=True)


def attention(x, key_padding_mask=None):
    return inner(x, x, x, key_padding_mask=key_padding_mask, need_weights=False)[0]
