from mega_pytorch import MegaLayer

attention = MegaLayer(dim=16, causal=True)
