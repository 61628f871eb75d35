from ring_attention_pytorch import RingTransformer

sizes = {"num_tokens": 32, "dim": 32, "depth": 2, "heads": 2, "dim_head": 16, "bucket_size": 16}
plain = {"auto_shard_seq": False, "ring_attn": False, "use_cuda_kernel": False}
model = RingTransformer(causal=True, **sizes, **plain)
