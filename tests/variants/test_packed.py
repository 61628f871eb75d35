"""``packed``: documents one by one, against a loop over single pairs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import polyattn
from polyattn import Mask, Unsupported
from polyattn.capabilities import Call
from polyattn.operation import Operation
from polyattn_plugins.packed import Packed


def qkv(batch: int, queries: int, keys: int) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)

    def one(length: int) -> Tensor:
        size = (batch, 2, length, 4)
        return torch.randn(size, generator=draw, dtype=torch.float64).requires_grad_()

    return one(queries), one(keys), one(keys)


def by_loop(q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
    """The definition, one query at a time; which keys it sees is decided by Python."""
    queries, keys = q.shape[2], k.shape[2]
    ids = mask.segment_ids(queries)
    assert ids is not None
    rows = []
    for b in range(q.shape[0]):
        for i in range(queries):
            seen = [
                j
                for j in range(keys)
                if ids[0][b, i] == ids[1][b, j]
                and (mask.prefix is None or j <= i + keys - queries)
                and (mask.real is None or mask.real[b, j])
            ]
            odds = (0.5 * (q[b, :, i, None] * k[b][:, seen]).sum(-1)).exp()
            share = odds / odds.sum(-1, keepdim=True) if seen else odds
            rows.append((share[..., None] * v[b][:, seen]).sum(1))
    return torch.stack(rows, dim=1).unflatten(1, (q.shape[0], queries)).transpose(0, 1)


REAL = torch.tensor([[True, False, True, True, True, True, True], [True] * 6 + [False]])
MASKS = {
    "one after the other": Mask.documents([[2, 5], [4, 3]]),
    "causal": Mask.documents([[2, 5], [3, 4]]) & Mask.causal(),
    "a document of one token": Mask.documents([[1, 6], [6, 1]]) & Mask.causal(),
    "interleaved": Mask.segments(torch.tensor([[0, 1, 0, 1, 1, 0, 2], [7, 7, 3, 3, 7, 9, 3]])),
    "interleaved, causal": Mask.segments(torch.tensor([[0, 1, 0, 1, 1, 0, 2]] * 2)) & Mask.causal(),
    "padded": Mask.documents([[2, 5], [4, 3]]) & Mask.padding(REAL),
    "padded, causal": Mask.documents([[2, 5], [6, 1]]) & Mask.padding(REAL) & Mask.causal(),
}


@pytest.mark.parametrize("queries", [7, 3, 1])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_it_is_the_loop_in_values_and_gradients(mask: Mask, queries: int) -> None:
    tensors = qkv(2, queries, 7)
    out, wanted = Packed()(*tensors, mask), by_loop(*tensors, mask)
    torch.testing.assert_close(out, wanted, rtol=0, atol=1e-12)
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=out.dtype)
    got, due = (torch.autograd.grad(x, tensors, grad, retain_graph=True) for x in (out, wanted))
    torch.testing.assert_close(got, due, rtol=0, atol=1e-12)


def test_documents_of_unrelated_sequences() -> None:
    tensors = qkv(1, 9, 4)
    ids = torch.tensor([[0, 0, 5, 5, 5, 1, 1, 0, 2]]), torch.tensor([[1, 0, 0, 2]])
    mask = Mask.segments(*ids)
    out = Packed()(*tensors, mask)
    torch.testing.assert_close(out, by_loop(*tensors, mask), rtol=0, atol=1e-12)
    assert not out[0, :, 2:5].any()


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        (Mask.causal(), "without segments"),
        (Mask.documents([3, 4]) & Mask.causal(prefix=2), "causal prefix"),
        (Mask.documents([3, 4]) & Mask.window(2, 0), "window"),
        (Mask.documents([3, 4]) & Mask.alibi(torch.ones(2)), "alibi"),
    ],
)
def test_what_it_is_not_made_for_it_refuses(mask: Mask, said: str) -> None:
    with pytest.raises(Unsupported, match=said):
        Packed()(*qkv(1, 7, 7), mask)


def test_softmax_asks_it_for_documents_and_others_for_the_rest() -> None:
    softmax = polyattn.create("softmax")
    assert isinstance(softmax, Operation)
    parts = {"segments": "packed", "padding": "flash"}
    for part, name in parts.items():
        call = Call(device="cpu", dtype=torch.float32, parts=frozenset({part, "causal"}))
        assert softmax.choose(call).name == name
    biased = Call(device="cpu", dtype=torch.float32, parts=frozenset({"segments", "bias"}))
    assert softmax.choose(biased).name == "flash"
