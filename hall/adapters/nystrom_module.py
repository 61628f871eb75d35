from nystrom_attention import NystromAttention

attention = NystromAttention(dim=16, dim_head=8, heads=2, num_landmarks=4)
