from axial_attention.axial_attention import SelfAttention

attention = SelfAttention(16, 2)
