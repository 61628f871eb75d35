from routing_transformer import RoutingTransformerLM

model = RoutingTransformerLM(
    num_tokens=32, dim=32, heads=2, depth=2, max_seq_len=64, window_size=16, causal=True
)
