from native_sparse_attention_pytorch import SparseAttention

sizes = {"dim": 16, "dim_head": 8, "heads": 2, "sliding_window_size": 2}
blocks = {"compress_block_size": 4, "compress_block_sliding_stride": 2}
attention = SparseAttention(selection_block_size=4, num_selected_blocks=2, **sizes, **blocks)
