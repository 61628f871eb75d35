import torch
from performer_pytorch import FastAttention

torch.manual_seed(0)
attention = FastAttention(dim_heads=8, nb_features=32)
