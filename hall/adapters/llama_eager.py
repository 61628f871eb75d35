from transformers.models.llama.modeling_llama import eager_attention_forward

attention = eager_attention_forward
