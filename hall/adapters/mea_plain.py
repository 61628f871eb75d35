from memory_efficient_attention_pytorch.memory_efficient_attention import attention  # noqa: F401
