from reformer_pytorch import LSHSelfAttention

attention = LSHSelfAttention(dim=16, heads=2, bucket_size=4, n_hashes=2)
