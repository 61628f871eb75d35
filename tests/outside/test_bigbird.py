"""``block_sparse`` against the block-sparse attention of transformers' BigBird, weights copied."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import polyattn
from polyattn import Mask

np = pytest.importorskip("numpy")
big_bird = pytest.importorskip("transformers.models.big_bird.modeling_big_bird")

BLOCK, BLOCKS, HEADS, WIDTH, RANDOM, SEED = 4, 12, 3, 8, 2, 7
LENGTH = BLOCK * BLOCKS


def theirs() -> Any:
    """In training, where alone it draws; this layer has no dropout of its own."""
    config = big_bird.BigBirdConfig(
        hidden_size=HEADS * WIDTH,
        num_attention_heads=HEADS,
        num_random_blocks=RANDOM,
        block_size=BLOCK,
        max_position_embeddings=4096,
    )
    return big_bird.BigBirdBlockSparseAttention(config, seed=SEED).double().train()


def table_of(layer: Any) -> Tensor:
    """What its heads see, (H, R, R): by the draws that it makes, and the blocks of its paper."""
    lengths, counts = layer._get_rand_attn_plan(LENGTH, BLOCK, RANDOM)
    np.random.seed(SEED)
    drawn = layer._bigbird_block_rand_mask_with_head(
        from_seq_length=LENGTH,
        to_seq_length=LENGTH,
        from_block_size=BLOCK,
        to_block_size=BLOCK,
        num_heads=HEADS,
        plan_from_length=lengths,
        plan_num_rand_blocks=counts,
    )
    table = torch.zeros(HEADS, BLOCKS, BLOCKS, dtype=torch.int64)
    for edge in (0, -1):
        table[:, edge] = table[:, :, edge] = 1
    for row in range(1, BLOCKS - 1):
        table[:, row, row - 1 : row + 2] = 1
        for head in range(HEADS):
            table[head, row, torch.as_tensor(drawn[head][row - 1]).long()] = 1
    return table


def heads_of(x: Tensor) -> Tensor:
    return x.view(*x.shape[:2], HEADS, WIDTH).transpose(1, 2)


@pytest.mark.parametrize("real", [LENGTH, LENGTH - 9])
def test_equals_that_of_transformers(real: int) -> None:
    torch.manual_seed(0)
    layer = theirs()
    table = table_of(layer)
    assert not torch.equal(table[0], table[1])
    ours = polyattn.create("block_sparse", block=BLOCK, layout=table.tolist())
    x = torch.randn(2, LENGTH, HEADS * WIDTH, dtype=torch.float64)
    keep = (torch.arange(LENGTH) < torch.tensor([[LENGTH], [real]])).double()
    blocked, band, rows, columns = big_bird.BigBirdModel.create_masks_for_block_sparse_attn(
        keep, BLOCK
    )
    wanted, _ = layer(x, band, rows, columns, blocked, blocked)
    q, k, v = (heads_of(part(x)) for part in (layer.query, layer.key, layer.value))
    out = ours(q, k, v, Mask.padding(keep.bool())).transpose(1, 2).flatten(2)
    at = keep.bool()
    torch.testing.assert_close(out[at], wanted[at], rtol=0, atol=1e-12)
    grads = [
        torch.autograd.grad(y[at].square().sum(), layer.key.weight, retain_graph=True)[0]
        for y in (out, wanted)
    ]
    torch.testing.assert_close(*grads, rtol=0, atol=1e-11)
