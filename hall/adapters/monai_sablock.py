from monai.networks.blocks.selfattention import SABlock

attention = SABlock(16, 2)
