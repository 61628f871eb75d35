"""Masks: what each part means, how they combine, and what is refused.

The oracle is a plain loop over (b, h, i, j), written from the definitions and not from the code.
"""

from __future__ import annotations

import copy
import doctest
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import polyattn.mask
from polyattn.errors import MaskError
from polyattn.mask import Mask, alibi_slopes, as_mask

B, H = 2, 3
INF = float("inf")


@dataclass
class Part:
    """One part, and who it lets see whom."""

    mask: Mask
    visible: Callable[[int, int, int, int], bool] = lambda b, h, i, j: True
    added: Callable[[int, int, int, int], float] = lambda b, h, i, j: 0.0
    fields: dict[str, Any] = field(default_factory=dict)


def at(values: Any, *index: int) -> Any:
    """An element of nested lists, where a list of one stands for all."""
    for position in index:
        values = values[position if len(values) > 1 else 0]
    return values


def nested(draw: Any, shape: tuple[int, ...], element: st.SearchStrategy[Any]) -> Any:
    if not shape:
        return draw(element)
    return [nested(draw, shape[1:], element) for _ in range(shape[0])]


def pattern_shape(draw: Any, queries: int, keys: int) -> tuple[int, ...]:
    sizes = (B, H, queries, keys)[draw(st.sampled_from([0, 2])) :]
    return tuple(draw(st.sampled_from([1, size])) for size in sizes)


def padded(values: Any, rank: int) -> Any:
    return values if rank == 4 else [[values]]


@st.composite
def parts(draw: Any, queries: int, keys: int) -> Part:
    shift = keys - queries
    kinds = ["dense", "where", "bias", "padding", "two sets"]
    if queries <= keys:
        kinds += ["causal", "window", "one set", "alibi", "documents"]
    kind = draw(st.sampled_from(kinds))
    small = st.integers(0, 4)
    if kind == "causal":
        prefix = draw(small)
        return Part(Mask.causal(prefix), lambda b, h, i, j: j <= i + shift or j < prefix)
    if kind == "window":
        left, right = draw(
            st.tuples(st.none() | small, st.none() | small).filter(lambda w: w != (None, None))
        )
        return Part(
            Mask.window(left, right),
            lambda b, h, i, j: (
                (left is None or i + shift - j <= left)
                and (right is None or j - (i + shift) <= right)
            ),
        )
    if kind == "padding":
        real = nested(draw, (B, keys), st.booleans())
        return Part(Mask.padding(torch.tensor(real)), lambda b, h, i, j: real[b][j])
    if kind == "one set":
        ids = nested(draw, (B, keys), st.integers(-1, 2))
        return Part(
            Mask.segments(torch.tensor(ids)), lambda b, h, i, j: ids[b][i + shift] == ids[b][j]
        )
    if kind == "documents":
        cut = draw(st.integers(1, keys))
        rows = [[keys], [cut, keys - cut] if cut < keys else [keys]]
        return Part(
            Mask.documents(rows),
            lambda b, h, i, j: b == 0 or (i + shift < cut) == (j < cut),
        )
    if kind == "two sets":
        asks = nested(draw, (B, queries), st.integers(-1, 2))
        has = nested(draw, (B, keys), st.integers(-1, 2))
        return Part(
            Mask.segments(torch.tensor(asks), torch.tensor(has)),
            lambda b, h, i, j: asks[b][i] == has[b][j],
        )
    if kind == "dense":
        shape = pattern_shape(draw, queries, keys)
        kept = nested(draw, shape, st.booleans())
        full = padded(kept, len(shape))
        return Part(Mask.dense(torch.tensor(kept)), lambda b, h, i, j: at(full, b, h, i, j))
    if kind == "where":
        step = draw(st.integers(1, 4))
        return Part(
            Mask.where(lambda b, h, i, j: (b + 2 * h + 3 * i + 5 * j) % 4 < step),
            lambda b, h, i, j: (b + 2 * h + 3 * i + 5 * j) % 4 < step,
        )
    if kind == "bias":
        shape = pattern_shape(draw, queries, keys)
        values = nested(draw, shape, st.sampled_from([0.0, 1.5, -2.0, -INF]))
        full = padded(values, len(shape))
        return Part(
            Mask.bias(torch.tensor(values)),
            lambda b, h, i, j: at(full, b, h, i, j) != -INF,
            lambda b, h, i, j: at(full, b, h, i, j),
        )
    slopes = [0.5, 0.25, 2.0]
    return Part(
        Mask.alibi(torch.tensor(slopes)),
        added=lambda b, h, i, j: -slopes[h] * abs(i + shift - j),
    )


@st.composite
def calls(draw: Any) -> tuple[int, int, list[Part]]:
    queries, keys = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    several = draw(st.lists(parts(queries, keys), max_size=4))
    if sum(part.mask.slopes is not None for part in several) > 1:
        several = [part for part in several if part.mask.slopes is None]
    return queries, keys, several


def both(several: list[Part]) -> Mask:
    return reduce(lambda first, second: first & second, (p.mask for p in several), Mask.full())


def loop(value: Callable[[int, int, int, int], Any], queries: int, keys: int) -> Tensor:
    cells = [value(*cell) for cell in product(range(B), range(H), range(queries), range(keys))]
    return torch.tensor(cells).view(B, H, queries, keys)


def spread(values: Tensor | None, queries: int, keys: int, empty: Any = True) -> Tensor:
    """A dense form over all of (B, H, L, S)."""
    if values is None:
        return torch.full((B, H, queries, keys), empty)
    assert values.ndim == 4
    return values.expand(B, H, queries, keys)


class TestAgainstTheLoop:
    @settings(max_examples=250, deadline=None)
    @given(calls())
    def test_keep_is_the_conjunction(self, call: tuple[int, int, list[Part]]) -> None:
        queries, keys, several = call
        want = loop(lambda *cell: all(p.visible(*cell) for p in several), queries, keys)
        mask = both(several)
        got = mask.keep(queries, keys, B, H)
        assert got is None or got.dtype == torch.bool
        assert torch.equal(spread(got, queries, keys), want)
        turned = both(several[::-1]).keep(queries, keys, B, H)
        assert torch.equal(spread(turned, queries, keys), want)
        seen = mask.visible_rows(queries, keys, B, H)
        assert torch.equal(spread(seen, queries, 1), want.any(dim=-1, keepdim=True)), "visible_rows"

    @settings(max_examples=100, deadline=None)
    @given(calls())
    def test_logit_bias_is_the_sum(self, call: tuple[int, int, list[Part]]) -> None:
        queries, keys, several = call
        want = loop(lambda *cell: sum(p.added(*cell) for p in several), queries, keys)
        got = both(several).logit_bias(queries, keys, dtype=torch.float64)
        assert torch.equal(spread(got, queries, keys, 0.0).double(), want.double())

    @settings(max_examples=150, deadline=None)
    @given(calls(), st.data())
    def test_rows_are_those_of_the_whole(
        self, call: tuple[int, int, list[Part]], data: st.DataObject
    ) -> None:
        queries, keys, several = call
        mask = both(several)
        index = torch.tensor(
            data.draw(st.lists(st.integers(0, queries - 1), min_size=1, max_size=keys))
        )
        some = mask.rows(index, queries, keys)
        whole = spread(mask.keep(queries, keys, B, H), queries, keys)
        got = spread(some.keep(len(index), keys, B, H), len(index), keys)
        assert torch.equal(got, whole[:, :, index])
        bias = spread(mask.logit_bias(queries, keys), queries, keys, 0.0)
        got = spread(some.logit_bias(len(index), keys), len(index), keys, 0.0)
        assert torch.equal(got, bias[:, :, index])


class TestAlgebra:
    def test_the_smaller_prefix_and_the_narrower_sides(self) -> None:
        mask = Mask.causal(5) & Mask.window(3, None) & Mask.causal(2) & Mask.window(7, 1)
        assert (mask.prefix, mask.span) == (2, (3, 1))

    def test_full_changes_nothing(self) -> None:
        mask = Mask.documents([[2, 3]]) & Mask.full()
        assert mask.document_lengths == ((2, 3),)
        assert (Mask.full() & Mask.causal(3)).prefix == 3

    def test_ids_of_two_segments_parts_do_not_collide(self) -> None:
        far = 2**40
        first = Mask.segments(torch.tensor([[0, 0, far, far, -far]]))
        second = Mask.segments(torch.tensor([[7, far, 7, far, 7]], dtype=torch.int64))
        ids = (first & second).key_ids
        assert ids is not None
        assert len(set(ids[0].tolist())) == 5
        close = Mask.segments(torch.tensor([[0, 1]])) & Mask.segments(torch.tensor([[2, 0]]))
        assert close.draw(2, 2) == "#.\n.#"
        assert torch.equal(
            (first & first).keep(5, 5),
            first.keep(5, 5),  # type: ignore[arg-type]
        )

    def test_two_segments_parts_have_no_host_lengths(self) -> None:
        mask = Mask.documents([[2, 3]]) & Mask.documents([[4, 1]])
        assert mask.document_lengths is None
        keep = mask.keep(5, 5)
        assert keep is not None
        assert torch.equal(keep, Mask.documents([[2, 2, 1]]).keep(5, 5))

    @pytest.mark.parametrize(
        ("first", "second", "words"),
        [
            (Mask.alibi(torch.ones(2)), Mask.alibi(torch.ones(2)), "one alibi"),
            (Mask.lengths([2]), Mask.lengths([2, 3]), "one batch"),
            (Mask.lengths([2, 2]), Mask.lengths([2, 3]), "one shape"),
            (Mask.documents([[2]]), Mask.documents([[2], [2]]), "one batch"),
            (
                Mask.segments(torch.zeros(1, 5, dtype=torch.long), torch.zeros(1, 3).long()),
                Mask.documents([[1, 2]]),
                "L <= S",
            ),
            (
                Mask.segments(torch.zeros(1, 2).long(), torch.zeros(1, 3).long()),
                Mask.segments(torch.zeros(1, 3).long(), torch.zeros(1, 3).long()),
                "query ids",
            ),
            (Mask.causal(), torch.ones(2, 2, dtype=torch.bool), "Mask.dense"),
        ],
    )
    def test_what_cannot_be_combined(self, first: Mask, second: Any, words: str) -> None:
        with pytest.raises(MaskError, match=words) as caught:
            first & second
        assert "\n" not in str(caught.value)

    def test_a_tensor_on_the_left_is_no_mask_either(self) -> None:
        with pytest.raises(MaskError, match=r"Mask\.bias"):
            torch.zeros(2, 2) & Mask.causal()
        with pytest.raises(TypeError):
            Mask.causal() & 3  # type: ignore[operator]

    def test_only_and_without(self) -> None:
        mask = Mask.causal() & Mask.lengths([2]) & Mask.where(lambda b, h, i, j: i >= j)
        assert mask.only("causal", "dense").parts == {"causal", "dense"}
        assert mask.without("causal").parts == {"padding", "dense"}
        assert mask.without(*mask.parts).is_full
        with pytest.raises(MaskError, match=r"'casual'.*'causal'"):
            mask.without("casual")

    def test_parts_name_each_field(self) -> None:
        ones = torch.ones(3, 3)
        whole = {
            "causal": Mask.causal(),
            "window": Mask.window(0, None),
            "padding": Mask.lengths([3]),
            "segments": Mask.documents([3]),
            "dense": Mask.dense(ones > 0),
            "bias": Mask.bias(ones),
            "alibi": Mask.alibi(ones[0]),
        }
        for part, mask in whole.items():
            assert mask.parts == {part}
            assert not mask.is_full
        assert Mask.where(lambda b, h, i, j: i >= j).parts == {"dense"}
        assert reduce(lambda a, b: a & b, whole.values()).parts == set(whole)
        assert Mask.full().is_full


FLOAT, INT, BOOL = torch.zeros(2, 3), torch.zeros(2, 3).long(), torch.ones(2, 3) > 0


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Mask.causal(-1), "prefix.*-1"),
        (lambda: Mask.causal(True), "prefix.*True"),
        (lambda: Mask.causal(1.0), r"prefix.*1\.0"),
        (lambda: Mask.window(-1, 0), "left.*-1.*None"),
        (lambda: Mask.window(0, -2), "right.*-2"),
        (lambda: Mask.window(None, None), r"Mask\.full"),
        (lambda: Mask.window(2**63, 0), "left"),
        (lambda: Mask.padding(FLOAT), r"bool.*float32 tensor \(2, 3\).*Mask\.bias"),
        (lambda: Mask.padding(INT), "bool.*int64.*!= 0"),
        (lambda: Mask.padding(INT.to(torch.uint8)), "bool.*uint8"),
        (lambda: Mask.padding(BOOL[0]), r"\(B, S\).*\(3,\)"),
        (lambda: Mask.padding(BOOL[None, None]), r"\(B, S\).*Mask\.dense"),
        (lambda: Mask.padding([True]), "bool.*list"),
        (lambda: Mask.dense(FLOAT), r"float32.*Mask\.bias"),
        (lambda: Mask.dense(INT), "int64.*!= 0"),
        (lambda: Mask.dense(BOOL[0]), r"\(3,\)"),
        (lambda: Mask.dense(BOOL[None]), r"\(1, 2, 3\).*x\[:, None\]"),
        (lambda: Mask.bias(BOOL), r"bool.*Mask\.dense"),
        (lambda: Mask.bias(INT), r"int64.*float\(\)"),
        (lambda: Mask.bias(FLOAT[None]), r"\(1, 2, 3\)"),
        (lambda: Mask.segments(FLOAT), r"integer.*float32.*Mask\.documents"),
        (lambda: Mask.segments(BOOL), r"integer.*bool.*Mask\.padding"),
        (lambda: Mask.segments(INT[0]), r"\(3,\).*ids\[None\]"),
        (lambda: Mask.segments(INT, BOOL), "key_ids.*integer.*bool"),
        (lambda: Mask.segments(INT, INT[:1]), "one batch"),
        (lambda: Mask.segments([0, 1]), r"integer.*list"),
        (lambda: Mask.documents([]), r"documents.*Mask\.documents\(\[3, 5\]\)"),
        (lambda: Mask.documents([3, 0]), r"documents\[0\]\[1\].*0"),
        (lambda: Mask.documents([[3], [-1]]), r"documents\[1\]\[0\].*-1"),
        (lambda: Mask.documents([[3, 1], [2]]), r"totals \[4, 2\]"),
        (lambda: Mask.documents([[3], 2]), "flat list"),
        (lambda: Mask.documents(INT), r"int64.*Mask\.segments"),
        (lambda: Mask.documents("35"), "documents"),
        (lambda: Mask.lengths([]), r"lengths"),
        (lambda: Mask.lengths([2, -1]), r"lengths\[1\].*-1"),
        (lambda: Mask.lengths([2, 5], total=4), "total.*5.*4"),
        (lambda: Mask.lengths(INT[0]), r"tolist"),
        (lambda: Mask.lengths([2.5]), r"lengths\[0\].*2\.5"),
        (lambda: Mask.where(BOOL), r"function.*bool tensor.*Mask\.where"),
        (lambda: Mask.alibi(FLOAT), r"\(H,\).*\(2, 3\).*alibi_slopes"),
        (lambda: Mask.alibi(INT[0]), r"floating.*int64"),
        (lambda: Mask.alibi(8), r"floating.*8.*alibi_slopes"),
        (lambda: alibi_slopes(-1), "heads.*-1"),
        (lambda: as_mask(BOOL), r"Mask\.padding.*Mask\.dense.*~x"),
        (lambda: as_mask(BOOL[None, None]), r"Mask\.dense"),
        (lambda: as_mask(FLOAT), r"Mask\.bias"),
        (lambda: as_mask(INT), r"Mask\.segments.*Mask\.padding"),
        (lambda: as_mask(lambda b, h, i, j: i >= j), r"Mask\.where"),
        (lambda: as_mask("causal"), r"'causal'"),
    ],
)
def test_bad_input_is_named_with_the_way_out(make: Callable[[], object], words: str) -> None:
    with pytest.raises(MaskError, match=words) as caught:
        make()
    assert "\n" not in str(caught.value)
    assert "; " in str(caught.value)


def test_as_mask_takes_masks_and_none() -> None:
    mask = Mask.causal()
    assert as_mask(mask) is mask
    assert as_mask(None).is_full


class TestCheck:
    """Sizes of the call: B=2, H=3, L=4, S=5."""

    @pytest.mark.parametrize(
        ("mask", "words"),
        [
            (Mask.lengths([5]), r"padding.*\(2, 5\).*\(1, 5\)"),
            (Mask.lengths([4, 4]), r"padding.*\(2, 5\).*\(2, 4\)"),
            (Mask.documents([[4], [4]]), r"key ids.*\(2, 4\)"),
            (Mask.segments(torch.zeros(2, 3).long(), torch.zeros(2, 5).long()), "query ids"),
            (Mask.dense(torch.ones(5, 4) > 0), r"dense.*\(2, 3, 4, 5\).*\(5, 4\)"),
            (Mask.dense(torch.ones(3, 1, 4, 5) > 0), "dense"),
            (Mask.dense(torch.ones(1, 2, 4, 5) > 0), "dense"),
            (Mask.bias(torch.ones(4, 4)), "bias"),
            (Mask.bias(torch.ones(2, 3, 5, 1)), "bias"),
            (Mask.alibi(torch.ones(4)), r"slopes.*\(3\).*\(4,\)"),
            (
                Mask.full()
                & Mask.causal()
                & Mask.bias(torch.ones(4, 5))
                & Mask.bias(torch.ones(2, 1)),
                "bias",
            ),
        ],
    )
    def test_shapes(self, mask: Mask, words: str) -> None:
        with pytest.raises(MaskError, match=words) as caught:
            mask.check(2, 3, 4, 5)
        assert "\n" not in str(caught.value)

    def test_what_fits(self) -> None:
        mask = (
            Mask.causal()
            & Mask.window(2, 0)
            & Mask.lengths([5, 3])
            & Mask.documents([[5], [2, 3]])
            & Mask.segments(torch.zeros(2, 4).long(), torch.zeros(2, 5).long())
            & Mask.dense(torch.ones(1, 5) > 0)
            & Mask.bias(torch.ones(2, 1, 4, 1))
            & Mask.alibi(torch.ones(3))
        )
        mask.check(2, 3, 4, 5)
        mask.check(2, 3, 4, 5, torch.device("cpu"))
        mask.check(None, None, 4, 5)

    @pytest.mark.parametrize(
        "mask",
        [Mask.causal(), Mask.window(1, 1), Mask.documents([3]), Mask.alibi(torch.ones(3))],
    )
    def test_more_queries_than_keys(self, mask: Mask) -> None:
        mask.check(1, 3, 3, 3)
        with pytest.raises(MaskError, match=r"L <= S.*L=4 and S=3"):
            mask.check(1, 3, 4, 3)
        with pytest.raises(MaskError, match="L <= S"):
            mask.keep(4, 3)

    def test_unordered_masks_take_more_queries(self) -> None:
        two = Mask.segments(torch.zeros(1, 4).long(), torch.zeros(1, 3).long())
        (two & Mask.lengths([2], 3) & Mask.dense(torch.ones(4, 3) > 0)).check(1, 1, 4, 3)
        Mask.full().check(1, 1, 4, 3)

    def test_device(self) -> None:
        mask = Mask.causal() & Mask.lengths([2])
        with pytest.raises(MaskError, match=r"meta.*cpu.*\.to\('meta'\)"):
            mask.check(1, 1, 2, 2, torch.device("meta"))
        moved = mask.to("meta")
        moved.check(1, 1, 2, 2, "meta")
        assert moved.prefix == 0
        Mask.causal().check(1, 1, 2, 2, "meta")

    def test_dense_forms_compare_shapes_too(self) -> None:
        mask = Mask.bias(torch.zeros(4, 4))
        with pytest.raises(MaskError, match="bias"):
            mask.keep(1, 3)
        with pytest.raises(MaskError, match="bias"):
            mask.logit_bias(1, 3)
        with pytest.raises(MaskError, match="bias"):
            mask.visible_rows(1, 3)
        with pytest.raises(MaskError, match="bias"):
            mask.rows(torch.tensor([0]), 1, 3)


class TestPredicates:
    @pytest.mark.parametrize(
        ("predicate", "words"),
        [
            (lambda b, h, i, j: i - j, "bool.*int64"),
            (lambda b, h, i, j: True, "bool.*True"),
            (lambda b, h, i, j: torch.ones(3, 4) > 0, r"\(3, 4\)"),
            (lambda b, h, i, j: (i >= j)[None], r"\(1, 1, 1, 4, 4\)"),
        ],
    )
    def test_the_answer_is_checked(self, predicate: Any, words: str) -> None:
        with pytest.raises(MaskError, match=words):
            Mask.where(predicate).keep(4, 4, 1, 1)

    def test_batch_and_heads_are_needed(self) -> None:
        mask = Mask.where(lambda b, h, i, j: i >= j)
        for batch, heads in ((None, 1), (1, None)):
            with pytest.raises(MaskError, match="batch and heads"):
                mask.keep(4, 4, batch, heads)

    def test_every_index_counts_from_zero(self) -> None:
        seen: list[Tensor] = []

        def predicate(*index: Tensor) -> Tensor:
            seen.extend(index)
            return index[2] >= index[3]

        Mask.where(predicate).keep(2, 4, 3, 5)
        assert [tuple(index.shape) for index in seen] == [
            (3, 1, 1, 1),
            (1, 5, 1, 1),
            (1, 1, 2, 1),
            (1, 1, 1, 4),
        ]
        for index in seen:
            assert torch.equal(index.flatten(), torch.arange(index.numel()))


class TestBias:
    def test_minus_infinity_closes_and_other_numbers_do_not(self) -> None:
        low = torch.finfo(torch.float32).min
        values = torch.tensor([[-INF, low, torch.nan, INF, 0.0]])
        keep = Mask.bias(values).keep(1, 5)
        assert keep is not None
        assert keep.flatten().tolist() == [False, True, True, True, True]
        got = Mask.bias(values).logit_bias(1, 5, dtype=torch.float32)
        assert got is not None
        assert got.isnan().flatten().tolist() == [False, False, True, False, False]

    @pytest.mark.parametrize("narrow", [torch.float16, torch.bfloat16, torch.float32])
    @pytest.mark.parametrize("wide", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
    def test_finite_stays_finite_in_any_dtype(self, wide: torch.dtype, narrow: torch.dtype) -> None:
        limit = torch.finfo(wide)
        values = torch.tensor([[limit.min, limit.max, -INF, INF, torch.nan]], dtype=wide)
        one = Mask.bias(values).logit_bias(1, 5, dtype=narrow)
        two = (Mask.bias(values) & Mask.bias(values)).logit_bias(1, 5, dtype=narrow)
        for got in (one, two):
            assert got is not None
            assert got.dtype == narrow
            assert got.flatten()[:2].isfinite().all()
            assert got.flatten()[2:4].tolist() == [-INF, INF]
            assert got.flatten()[4].isnan()

    def test_the_same_dtype_is_handed_on_uncopied(self) -> None:
        values = torch.randn(2, 3, 4, 5)
        got = Mask.bias(values).logit_bias(4, 5, dtype=torch.float32)
        assert got is not None
        assert got.data_ptr() == values.data_ptr()

    def test_gradients_reach_each_bias_and_are_finite_at_closed_entries(self) -> None:
        torch.manual_seed(0)
        first = torch.randn(3, 4, dtype=torch.float64)
        first[0] = -INF
        first[1, 2] = -INF
        first.requires_grad_()
        second = torch.randn(1, 2, 1, 4, dtype=torch.float32, requires_grad=True)
        slopes = torch.rand(2, requires_grad=True)
        mask = Mask.bias(first) & Mask.bias(second) & Mask.alibi(slopes)
        logits = mask.logit_bias(3, 4, dtype=torch.float32)
        keep, seen = mask.keep(3, 4), mask.visible_rows(3, 4)
        assert logits is not None
        assert keep is not None
        assert seen is not None
        weights = logits.masked_fill(~keep, -INF).masked_fill(~seen, 0.0).softmax(-1) * keep
        (weights * torch.randn(2, 3, 4)).sum().backward()
        for tensor in (first, second, slopes):
            assert tensor.grad is not None
            assert tensor.grad.isfinite().all()
            assert tensor.grad.abs().sum() > 0
        assert first.grad is not None
        assert (first.grad[0] == 0).all()
        assert first.grad[1, 2] == 0

    def test_none_where_nothing_is_added(self) -> None:
        assert (Mask.causal() & Mask.lengths([3])).logit_bias(3, 3) is None

    def test_alibi_counts_distances_in_full(self) -> None:
        mask = Mask.alibi(torch.ones(1, dtype=torch.bfloat16))
        got = mask.logit_bias(1, 4100, dtype=torch.float32)
        assert got is not None
        assert torch.equal(got.flatten(), torch.arange(-4099.0, 1.0))
        assert mask.keep(1, 4100) is None

    @pytest.mark.parametrize(
        ("heads", "want"),
        [
            (1, [2**-8]),
            (4, [2**-2, 2**-4, 2**-6, 2**-8]),
            (6, [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]),
            (0, []),
        ],
    )
    def test_slopes_of_the_paper(self, heads: int, want: list[float]) -> None:
        assert alibi_slopes(heads).tolist() == want


class TestVisibleRows:
    @pytest.mark.parametrize(
        "mask",
        [
            Mask.full(),
            Mask.causal(),
            Mask.window(0, 0) & Mask.causal(2),
            Mask.documents([1, 2]),
            Mask.alibi(torch.ones(2)),
        ],
    )
    def test_none_where_every_query_sees_itself(self, mask: Mask) -> None:
        assert mask.visible_rows(3, 3) is None

    def test_no_keys_no_row(self) -> None:
        got = Mask.full().visible_rows(2, 0)
        assert got is not None
        assert got.shape == (1, 1, 2, 1)
        assert not got.any()

    @pytest.mark.parametrize("packed", [False, True])
    def test_long_padding_never_becomes_quadratic(self, packed: bool) -> None:
        length = 300_000  # the dense form would be 90 GB
        real = torch.ones(1, length, dtype=torch.bool)
        real[:, 10:20] = False
        mask = Mask.padding(real) & Mask.causal() & Mask.window(3, 0)
        want = list(range(13, 20))
        if packed:
            mask = mask & Mask.documents([12, length - 12])
            want = list(range(12, 20))
        got = mask.visible_rows(length, length)
        assert got is not None
        assert (~got).flatten().nonzero().flatten().tolist() == want


class TestSignature:
    def test_lengths_are_not_in_it(self) -> None:
        def mask(size: int) -> Mask:
            return (
                Mask.lengths([size, 1])
                & Mask.documents([[size], [1, size - 1]])
                & Mask.dense(torch.ones(size, size) > 0)
                & Mask.bias(torch.zeros(size, size))
                & Mask.alibi(torch.ones(2))
            )

        assert mask(4).signature == mask(7).signature
        assert hash(mask(4).signature) == hash(mask(7).signature)

    def test_all_else_is(self) -> None:
        ones = torch.ones(2, 2)
        masks = [
            Mask.full(),
            Mask.causal(),
            Mask.causal(1),
            Mask.window(1, 0),
            Mask.window(0, 1),
            Mask.padding(ones > 0),
            Mask.documents([2]),
            Mask.segments(ones.long(), ones.long()),
            Mask.dense(ones > 0),
            Mask.dense((ones > 0)[None, None]),
            Mask.dense(ones > 0) & Mask.dense(ones > 0),
            Mask.where(lambda b, h, i, j: i >= j),
            Mask.bias(ones),
            Mask.bias(ones.double()),
            Mask.bias(ones.clone().requires_grad_()),
            Mask.alibi(ones[0]),
        ]
        assert len({mask.signature for mask in masks}) == len(masks)

    def test_a_later_need_of_gradients_is_seen(self) -> None:
        values = torch.ones(2, 2)
        mask = Mask.bias(values)
        before = mask.signature
        values.requires_grad_()
        assert mask.signature != before


class TestValue:
    def test_frozen_without_equality_and_hashable(self) -> None:
        mask = Mask.causal()
        with pytest.raises(AttributeError):
            mask.prefix = 3  # type: ignore[misc]
        assert mask != Mask.causal()
        assert len({mask, mask}) == 1

    def test_copies_and_pickles(self) -> None:
        mask = Mask.causal(2) & Mask.documents([[1, 2]]) & Mask.bias(torch.ones(3, 3))
        for twin in (copy.deepcopy(mask), pickle.loads(pickle.dumps(mask))):
            assert twin.document_lengths == ((1, 2),)
            assert torch.equal(twin.keep(3, 3), mask.keep(3, 3))

    def test_dense_form_leaves_the_tensors_alone(self) -> None:
        real = torch.tensor([[True, False]])
        values = torch.tensor([[0.0, -INF], [1.0, 2.0]])
        versions = real._version, values._version
        mask = Mask.padding(real) & Mask.bias(values) & Mask.causal()
        mask.keep(2, 2)
        mask.logit_bias(2, 2)
        mask.visible_rows(2, 2)
        mask & mask
        assert (real._version, values._version) == versions

    def test_to_moves_every_tensor(self) -> None:
        ids = torch.zeros(1, 2).long()
        mask = (
            Mask.lengths([2])
            & Mask.segments(ids, ids)
            & Mask.dense(torch.ones(2, 2) > 0)
            & Mask.bias(torch.ones(2, 2))
            & Mask.alibi(torch.ones(1))
        )
        leaves = torch.utils._pytree.tree_leaves(mask.to("meta"))
        assert len(leaves) == 6
        assert {leaf.device.type for leaf in leaves} == {"meta"}
        assert Mask.documents([2]).to("cpu").document_lengths == ((2,),)


class TestDrawing:
    def test_doctests(self) -> None:
        results = doctest.testmod(polyattn.mask, extraglobs={"torch": torch})
        assert results.attempted > 12
        assert results.failed == 0

    def test_text_names_the_parts(self) -> None:
        mask = (
            Mask.causal(2)
            & Mask.lengths([40])
            & Mask.bias(torch.zeros(40, 40))
            & Mask.documents([40])
        )
        assert repr(mask) == (
            "Mask.causal(prefix=2) & Mask.padding(bool (1, 40)) & Mask.documents([[40]])"
            " & Mask.bias(float32 (40, 40))"
        )
        assert repr(Mask.full()) == "Mask.full()"
        assert Mask.documents([[1] * 9] * 2).text == "Mask.documents(18 in 2 samples)"

    def test_sizes_come_from_the_tensors(self) -> None:
        two = Mask.segments(torch.tensor([[0, 1]]), torch.tensor([[1, 1, 0]]))
        assert repr(two) == "Mask.segments(int64 (1, 2), int64 (1, 3))\n  ..#\n  ##."

    def test_parts_that_fit_nothing_still_print(self) -> None:
        mask = Mask.causal() & Mask.dense(torch.ones(5, 3) > 0)
        assert repr(mask) == "Mask.causal() & Mask.dense(bool (5, 3))"

    def test_other_samples_and_heads(self) -> None:
        mask = Mask.where(lambda b, h, i, j: j == b + h)
        assert mask.draw(1, 4, sample=1, head=2) == "...#"
        assert Mask.lengths([1, 2]).draw(1, 2, sample=1) == "##"
