from transformers.models.gpt2.modeling_gpt2 import eager_attention_forward

attention = eager_attention_forward
