from x_transformers.attend import Attend

inner = Attend()


def attention(q, k, v, mask=None):
    return inner(q, k, v, mask=mask)[0]
