import torch

import polyattn
from polyattn.testing import check_variant


def test_additive() -> None:
    check_variant("bahdanau")


def test_a_network_that_says_nothing_gives_the_mean() -> None:
    variant = polyattn.create("bahdanau", polyattn.Sizes(heads=2, head_dim=4))
    torch.nn.init.zeros_(variant.out_net)
    q, k, v = torch.randn(3, 1, 2, 5, 4).unbind()
    torch.testing.assert_close(variant(q, k, v), v.mean(2, keepdim=True).expand_as(v))
