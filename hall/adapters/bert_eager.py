from transformers.models.bert.modeling_bert import eager_attention_forward

attention = eager_attention_forward
