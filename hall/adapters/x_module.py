from x_transformers.x_transformers import Attention

attention = Attention(dim=16, dim_head=8, heads=2)
