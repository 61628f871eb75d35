from torch.nn.functional import scaled_dot_product_attention

attention = scaled_dot_product_attention
