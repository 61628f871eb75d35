"""What a ``Mask`` becomes for kernels that run elsewhere, written out on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import polyattn
from polyattn import Mask, Unsupported
from polyattn_plugins.fused import Flex, Xformers, flex_mods, xformers_bias
from polyattn_plugins.softmax import Dense

B, H, D = 2, 4, 8
CLOSED = torch.tensor([[[[True]], [[False]], [[True]], [[True]]]] * B)


def masks(queries: int, keys: int) -> dict[str, Mask]:
    draw = torch.Generator().manual_seed(0)
    real = torch.arange(keys) < torch.tensor([[keys], [keys - 2]])
    some = torch.rand(B, H, queries, keys, generator=draw) > 0.3
    bias = torch.randn(1, H, queries, keys, generator=draw)
    ids = (torch.arange(keys) >= torch.tensor([[2], [3]])).long()
    return {
        "full": Mask.full(),
        "causal": Mask.causal(),
        "prefix": Mask.causal(prefix=2),
        "causal window": Mask.causal() & Mask.window(2, 3),
        "window": Mask.window(1, 2),
        "open window": Mask.window(None, 1),
        "window to the end": Mask.window(2, None),
        "padding": Mask.padding(real),
        "causal padding": Mask.causal() & Mask.padding(real),
        "segments": Mask.segments(ids) & Mask.causal(),
        "documents": Mask.documents([[3, keys - 3], [1, keys - 1]]),
        "causal documents": Mask.documents([[3, keys - 3], [1, keys - 1]]) & Mask.causal(),
        "windowed documents": Mask.documents([[3, keys - 3]] * B) & Mask.window(1, 1),
        "dense": Mask.dense(some),
        "a closed head": Mask.dense(CLOSED),
        "where": Mask.where(lambda b, h, i, j: (i + j + h) % 3 != b),
        "bias": Mask.bias(bias),
        "a bias that closes": Mask.bias(bias.masked_fill(bias > 1, -torch.inf)),
        "alibi": Mask.causal() & Mask.alibi(polyattn.alibi_slopes(H)),
    }


NAMES = list(masks(5, 5))


def tensors(queries: int, keys: int) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(B, H, n, D, generator=draw) for n in (queries, keys, keys))
    return q, k, v


def as_xformers(mask: Mask, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Its own reference, given what its kernel would be given."""
    utils = pytest.importorskip("xformers.attn_bias_utils")
    bias, rows = xformers_bias(mask, q, k.shape[2])
    layers = [x.transpose(1, 2) for x in (q, k, v)]
    if bias is not None and not isinstance(bias, Tensor) and mask.key_ids is not None:
        layers = [x.flatten(0, 1)[None] for x in layers]
    if isinstance(bias, Tensor):
        assert bias.stride(-2) % 8 == 0
        bias = bias.flatten(0, 1)
    out: Tensor = utils.ref_attention_bmhk(*layers, bias)
    out = out.view(B, q.shape[2], H, D).transpose(1, 2)
    return out if rows is None else out.masked_fill(~rows, 0.0)


@pytest.mark.parametrize("sizes", [(5, 5), (3, 7)], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_xformers_bias_means_the_mask(name: str, sizes: tuple[int, int]) -> None:
    q, k, v = tensors(*sizes)
    mask = masks(*sizes)[name]
    torch.testing.assert_close(as_xformers(mask, q, k, v), Dense()(q, k, v, mask))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("causal", "LowerTriangularMask"),
        ("causal window", "LocalAttentionFromBottomRightMask"),
        ("documents", "BlockDiagonalMask"),
        ("causal documents", "BlockDiagonalCausalMask"),
    ],
)
def test_what_xformers_has_an_object_for_is_no_tensor(name: str, kind: str) -> None:
    pytest.importorskip("xformers")
    bias, _ = xformers_bias(masks(5, 5)[name], tensors(5, 5)[0], 5)
    assert type(bias).__name__ == kind


@pytest.mark.parametrize("sizes", [(5, 5), (3, 7)], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_flex_mods_mean_the_mask(name: str, sizes: tuple[int, int]) -> None:
    """Its own vectorising over all pairs; and the score of each."""
    from torch.nn.attention.flex_attention import create_mask

    queries, keys = sizes
    mask = masks(queries, keys)[name]
    mask_mod, score_mod = flex_mods(mask, queries, keys)
    open_ = torch.ones(B, H, queries, keys, dtype=torch.bool)
    keep = mask.keep(queries, keys, B, H)
    assert (mask_mod is None) == (keep is None)
    if mask_mod is not None and keep is not None:
        made = create_mask(mask_mod, B, H, queries, keys, device="cpu")
        assert torch.equal(made, keep & open_)
    bias = mask.logit_bias(queries, keys)
    assert (score_mod is None) == (bias is None)
    if score_mod is not None and bias is not None:
        index = torch.meshgrid(*(torch.arange(n) for n in (B, H, queries, keys)), indexing="ij")
        scores = torch.randn(B, H, queries, keys)
        torch.testing.assert_close(score_mod(scores, *index), scores + bias)


@pytest.mark.parametrize("name", ["causal", "documents", "alibi", "dense", "a closed head"])
def test_flex_by_its_eager_form_is_dense(name: str) -> None:
    """Only here: the variant itself never runs eager."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    q, k, v = tensors(5, 5)
    mask = masks(5, 5)[name]
    mask_mod, score_mod = flex_mods(mask, 5, 5)
    assert mask_mod is not None
    blocks = create_block_mask(mask_mod, B, H, 5, 5, device="cpu")
    out: Any = flex_attention(q, k, v, score_mod=score_mod, block_mask=blocks)
    torch.testing.assert_close(out, Dense()(q, k, v, mask))


@pytest.mark.parametrize("variant", [Xformers(), Flex()])
def test_elsewhere_than_on_cuda_they_refuse(variant: polyattn.SequenceAttention) -> None:
    with pytest.raises(Unsupported, match="cuda"):
        variant(*tensors(5, 5))
