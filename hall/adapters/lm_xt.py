from x_transformers import Decoder, TransformerWrapper

model = TransformerWrapper(
    num_tokens=32, max_seq_len=64, attn_layers=Decoder(dim=32, depth=2, heads=2)
)
