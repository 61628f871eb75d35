from h_transformer_1d.h_transformer_1d import HAttention1D

attention = HAttention1D(16, heads=2, dim_head=8, block_size=4)
