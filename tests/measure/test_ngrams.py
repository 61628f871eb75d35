"""Counting models against a sum done by hand, and against the formula written plainly."""

import math
from collections import Counter

import pytest

from polyattn.measure import ngrams
from polyattn.measure.text import default_text, split


def test_a_sum_done_by_hand():
    # Seen "aab". Order 0: a twice, b once, two kinds. With 1/256 below:
    a = (2 + 2 / 256) / 5
    b = (1 + 2 / 256) / 5
    # After a (seen twice, two kinds: a and b once each); after b nothing was seen.
    a_after_a = (1 + 2 * a) / 4
    found = ngrams.bits_per_byte(b"aab", b"aab", (0, 1))
    b_after_a = (1 + 2 * b) / 4
    assert found[0] == pytest.approx(-(2 * math.log2(a) + math.log2(b)) / 3)
    assert found[1] == pytest.approx(
        -(math.log2(a) + math.log2(a_after_a) + math.log2(b_after_a)) / 3
    )


def plainly(train, held_out, order):
    counts, kinds, totals = Counter(), Counter(), Counter()
    for k in range(order + 1):
        for i in range(k, len(train)):
            gram, context = train[i - k : i + 1], (k, train[i - k : i])
            kinds[context] += gram not in counts
            counts[gram] += 1
            totals[context] += 1
    bits = 0.0
    for i in range(len(held_out)):
        p = 1 / 256
        for k in range(min(order, i) + 1):
            gram, context = held_out[i - k : i + 1], (k, held_out[i - k : i])
            if totals[context]:
                p = (counts[gram] + kinds[context] * p) / (totals[context] + kinds[context])
        bits -= math.log2(p)
    return bits / len(held_out)


def test_the_formula_written_plainly():
    train = b"the cat sat on the mat, the rat sat on the cat. \xff\x00\xfe" * 5
    held_out = b"the bat sat on the mat \xfe\x00 ~"
    found = ngrams.bits_per_byte(train, held_out, (0, 2, 4, 6))
    for order, bits in found.items():
        assert bits == pytest.approx(plainly(train, held_out, order)), order


def test_the_figures_of_the_default_text():
    train, held_out = split(default_text().data)
    found = ngrams.bits_per_byte(train, held_out, (1, 2, 4))
    # The text changes a little from one Python to the next.
    assert found == pytest.approx({1: 3.34, 2: 2.47, 4: 1.90}, abs=0.08)


@pytest.mark.parametrize("order", [0, 3])
def test_a_text_shorter_than_the_order(order):
    assert ngrams.bits_per_byte(b"a", b"b", (order,))[order] > 8


@pytest.mark.parametrize(("train", "held_out", "orders"), [(b"", b"a", (1,)), (b"a", b"", (1,))])
def test_an_empty_text_is_refused(train, held_out, orders):
    with pytest.raises(ValueError, match="empty"):
        ngrams.bits_per_byte(train, held_out, orders)


@pytest.mark.parametrize("orders", [(), (-1,), (7,)])
def test_an_order_that_does_not_fit_is_refused(orders):
    with pytest.raises(ValueError, match="orders from 0 to 6"):
        ngrams.bits_per_byte(b"ab", b"ab", orders)
