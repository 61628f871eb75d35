from diffusers.models.attention_processor import Attention

attention = Attention(16, heads=2, dim_head=8)
