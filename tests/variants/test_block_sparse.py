"""block_sparse: its layouts, the definition by a loop over pairs, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import polyattn
from polyattn import ConfigError, Mask, Unsupported
from polyattn_plugins.sparse import BlockSparse
from polyattn_plugins.sparse_kernel import block_sparse_attention
from polyattn_plugins.sparse_layouts import Layout

Sees = Callable[[int, int], bool]
TERMS: dict[str, tuple[Any, Sees]] = {
    "strided": ("strided", lambda r, c: abs(r - c) <= 8 or (r - c) % 8 == 0),
    "fixed": ("fixed", lambda r, c: r // 8 == c // 8 or c % 8 == 7),
    "chunked": ("chunked", lambda r, c: r // 8 == c // 8 or (r - c) % 8 == 0),
    "window": ({"window": 1}, lambda r, c: abs(r - c) < 2),
    "own": ({"window": 0}, lambda r, c: r == c),
    "globals": ({"globals": 2}, lambda r, c: r < 2 or c < 2),
    "summary": ({"chunk": 5, "summary": 2}, lambda r, c: r // 5 == c // 5 or c % 5 > 2),
}


def tensors(batch: int, heads: int, queries: int, keys: int) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(batch, heads, n, 4, dtype=torch.float64, generator=draw).requires_grad_()
        for n in (queries, keys, keys)
    )
    return q, k, v


def made(layout: Any, block: int = 3, **options: Any) -> BlockSparse:
    variant = polyattn.create("block_sparse", block=block, layout=layout, **options)
    assert isinstance(variant, BlockSparse)
    return variant


def by_loop(q: Tensor, k: Tensor, v: Tensor, block: int, sees: Sees) -> Tensor:
    """One query at a time, without a matrix product or a softmax."""
    offset, rows = k.shape[2] - q.shape[2], []
    for i in range(q.shape[2]):
        seen = [j for j in range(k.shape[2]) if sees((i + offset) // block, j // block)]
        logits = (q[:, :, i, None] * k[:, :, seen]).sum(-1) / 2
        odds = logits.exp()
        rows.append((odds[..., None] * v[:, :, seen]).sum(2) / odds.sum(-1, keepdim=True))
    return torch.stack(rows, dim=2)


def same_with_gradients(out: Tensor, wanted: Tensor, inputs: tuple[Tensor, ...]) -> None:
    torch.testing.assert_close(out, wanted, rtol=0, atol=1e-12)
    grad = torch.randn(out.shape, dtype=out.dtype, generator=torch.Generator().manual_seed(9))
    got = torch.autograd.grad(out, inputs, grad, retain_graph=True)
    for one, other in zip(got, torch.autograd.grad(wanted, inputs, grad), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


# Layouts


@pytest.mark.parametrize("name", list(TERMS))
@pytest.mark.parametrize(("queries", "keys"), [(80, 80), (31, 80), (1, 79)])
def test_each_term_by_a_loop_over_pairs(name: str, queries: int, keys: int) -> None:
    layout, sees = TERMS[name]
    q, k, v = tensors(2, 2, queries, keys)
    variant = made(layout)
    same_with_gradients(variant(q, k, v), by_loop(q, k, v, 3, sees), (q, k, v))
    same_with_gradients(variant.expected(q, k, v), by_loop(q, k, v, 3, sees), (q, k, v))


@pytest.mark.parametrize("layout", ["bigbird", *(layout for layout, _ in TERMS.values())])
def test_a_shorter_layout_is_the_corner_of_a_longer_one(layout: Any) -> None:
    terms = Layout.model_validate(layout)
    (long,) = terms.rows(0, 40)
    for blocks in (1, 2, 7, 39):
        (short,) = terms.rows(0, blocks)
        assert short == [[c for c in row if c < blocks] for row in long[:blocks]]
        (tail,) = terms.rows(blocks - 1, blocks)
        assert tail == short[-1:]


def test_what_is_drawn() -> None:
    """One block of each part between the globals and the window, which it sees in turn."""
    (rows,) = Layout(window=1, globals=2, random=3, seed=1).rows(0, 90)
    (without,) = Layout(window=1, globals=2).rows(0, 90)
    drawn = [set(row) - set(rest) for row, rest in zip(rows, without, strict=True)]
    for row in range(2, 90):
        assert all(row in rows[column] for column in drawn[row])
        earlier = sorted(column for column in drawn[row] if column < row)
        assert all(2 <= column < row - 1 for column in earlier)
        if row > 3 and row % 3 == 0:
            assert [(column - 2) * 3 // (row - 3) for column in earlier] == [0, 1, 2]
    (other,) = Layout(window=1, globals=2, random=3, seed=2).rows(0, 90)
    assert other != rows


def test_big_bird_by_its_words() -> None:
    assert Layout.model_validate("bigbird") == Layout(window=1, globals=2, random=2)
    assert BlockSparse.Config().layout == Layout.model_validate("bigbird")


def test_density_is_the_share_of_the_blocks_that_are_on() -> None:
    assert made({"stride": 8}, block=64).density(8192, 8192) == 1 / 8
    assert made({"window": 0}).density(30, 30) == 1 / 10
    assert made({"window": 0}).density(1, 31) == 1 / 11
    assert made({"window": 1}).density(6, 30) == (2 + 3) / 20
    assert made([[[1, 0], [0, 1]], [[1, 1], [1, 1]]]).density(6, 6) == 6 / 8


# Tables


def test_a_table_for_each_head_is_the_table_of_that_head() -> None:
    draw = torch.Generator().manual_seed(3)
    tables = (torch.rand(2, 9, 9, generator=draw) > 0.6).int()
    tables[1, 4] = 0
    q, k, v = tensors(2, 2, 20, 26)
    together = made(tables.tolist())(q, k, v)
    alone = [
        made(table.tolist())(q[:, h, None], k[:, h, None], v[:, h, None])
        for h, table in enumerate(tables)
    ]
    same_with_gradients(together, torch.cat(alone, dim=1), (q, k, v))
    same_with_gradients(made(tables.tolist()).expected(q, k, v), together, (q, k, v))
    assert not together[:, 1, 6:9].any(), "a row of blocks that sees none"
    assert together[:, 0].abs().sum(-1).all()


def test_tables_cover_what_they_cover() -> None:
    q, k, v = tensors(1, 2, 9, 9)
    variant = made([[1, 0], [1, 1]], block=4)
    assert variant(q[:, :, :8], k[:, :, :8], v[:, :, :8]).shape == (1, 2, 8, 4)
    with pytest.raises(Unsupported, match=r"length = 9 \(takes up to 8, its table\): give"):
        variant(q, k, v)
    by_head = made([[[1]], [[1]], [[1]]], block=9)
    with pytest.raises(Unsupported, match=r"heads = 2 \(takes 3"):
        by_head(q, k, v)
    with pytest.raises(Unsupported, match="L <= S"):
        made("fixed")(q, k[:, :, :8], v[:, :, :8])


@pytest.mark.parametrize(
    ("layout", "told"),
    [
        ("bigbrid", "expected bigbird, strided, fixed, chunked"),
        ({"windo": 1}, "did you mean 'window'"),
        ({"window": -1}, "layout.window = -1"),
        ({}, "at least one term"),
        ({"window": 1, "seed": 1}, "only with random"),
        ({"chunk": 2, "summary": 3}, "summary up to chunk"),
        ([], "not empty"),
        ([[1, 0], [1]], r"\(rows, rows\)"),
        ([[1, 0, 1], [1, 1, 1]], r"\(rows, rows\)"),
        ([[[1]], [[1, 1], [1, 1]]], r"\(rows, rows\)"),
        ([[1, 2], [0, 1]], "should be 0 or 1"),
        (3, "layout = 3"),
    ],
)
def test_bad_layouts(layout: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told) as error:
        made(layout)
    assert "\n" not in str(error.value)
    assert "layout" in str(error.value)


# The kernel


def test_closed_blocks_are_not_even_read() -> None:
    q, k, v = (x.detach() for x in tensors(1, 2, 30, 30))
    variant = made({"window": 0, "stride": 4})
    clean = variant(q, k, v)
    k[:, :, 12:15] = v[:, :, 12:15] = torch.nan
    reached = variant(q, k, v).isnan()[0, 0, :, 0].nonzero().flatten().tolist()
    assert reached == [0, 1, 2, 12, 13, 14, 24, 25, 26]
    kept = ~variant(q, k, v, Mask.causal()).isnan()
    assert kept[:, :, :12].all(), "blocks that causality closes"
    torch.testing.assert_close(variant(q, k, v)[:, :, 3:12], clean[:, :, 3:12], rtol=0, atol=0)


@pytest.mark.parametrize(
    "mask",
    [
        Mask.full(),
        Mask.causal(),
        Mask.causal(prefix=11),
        Mask.window(4, 20),
        Mask.lengths([9, 50], total=50) & Mask.causal(),
        Mask.segments((torch.arange(50) // 9 % 3).expand(2, 50)),
        Mask.dense(torch.rand(2, 1, 37, 50, generator=torch.Generator().manual_seed(0)) > 0.5),
        Mask.where(lambda b, h, i, j: (i + j + h) % 3 > 0),
        Mask.alibi(torch.tensor([0.5, 0.0, 2.0], dtype=torch.float64)) & Mask.causal(),
    ],
    ids=lambda mask: mask.text,
)
@pytest.mark.parametrize("layout", ["bigbird", (torch.eye(17) + 1 > 0).int().tolist()])
def test_equals_its_reference_under_masks(mask: Mask, layout: Any) -> None:
    q, k, v = tensors(2, 3, 37, 50)
    variant = made(layout)
    same_with_gradients(variant(q, k, v, mask), variant.expected(q, k, v, mask), (q, k, v))


def test_decodes_as_it_attends() -> None:
    q, k, v = (x.detach() for x in tensors(2, 2, 40, 40))
    variant = made("bigbird")
    whole = variant(q, k, v, Mask.causal())
    state, start = variant.new_state(2, dtype=q.dtype), 0
    for cut in (1, 4, 20, 1, 1, 13):
        at = slice(start, start + cut)
        out, state = variant.extend(q[:, :, at], k[:, :, at], v[:, :, at], state)
        torch.testing.assert_close(out, whole[:, :, at], rtol=0, atol=1e-13)
        start += cut


def test_the_operator_is_well_formed() -> None:
    q, k, v = tensors(1, 2, 20, 20)
    slopes = torch.tensor([0.5, 0.25], dtype=torch.float64, requires_grad=True)
    reach = torch.arange(20) - 6, torch.arange(20)
    real = torch.ones(1, 20, dtype=torch.bool)
    text = Layout(window=1).model_dump_json()
    arguments = (q, k, v, text, 3, 0.5, *reach, real, None, None, None, slopes)
    torch.library.opcheck(block_sparse_attention, arguments)


def test_second_derivatives_are_refused() -> None:
    q, k, v = tensors(1, 1, 20, 20)
    (grad,) = torch.autograd.grad(made("fixed")(q, k, v).sum(), q, create_graph=True)
    with pytest.raises(Unsupported, match="double_backward"):
        grad.sum().backward()
