from transformers import RoFormerConfig, RoFormerForCausalLM

sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
more = {"intermediate_size": 64, "max_position_embeddings": 64, "is_decoder": True}
model = RoFormerForCausalLM(RoFormerConfig(vocab_size=32, **sizes, **more))
