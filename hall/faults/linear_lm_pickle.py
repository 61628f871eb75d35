"""linear-attention-transformer: the language model cannot be pickled."""

import pickle

from linear_attention_transformer import LinearAttentionTransformerLM

model = LinearAttentionTransformerLM(num_tokens=32, dim=32, heads=2, depth=1, max_seq_len=64)
try:
    pickle.dumps(model)
except AttributeError as error:
    raise AssertionError(f"pickle raises AttributeError: {error}") from None
