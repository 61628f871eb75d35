"""`linear` against a loop over the formula, and its chunks, states and extremes against each other.

Chunks hold 64 tokens, so the lengths lie around 64 and 128.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

import polyattn
from polyattn import Mask, RecurrentState, Sizes
from polyattn.errors import ConfigError, Unsupported
from polyattn.measure.memory import peak_bytes
from polyattn_plugins import linear_chunks, linear_kernel
from polyattn_plugins.linear import Linear

HEADS, KEY_HEADS, WIDTH, VALUE = 4, 2, 5, 3
SIZES = Sizes(HEADS, WIDTH, KEY_HEADS, VALUE)


def qkv(queries: int, keys: int, batch: int = 2, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)

    def one(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=draw).mul_(1.5).requires_grad_()

    return (
        one(batch, HEADS, queries, WIDTH),
        one(batch, KEY_HEADS, keys, WIDTH),
        one(batch, KEY_HEADS, keys, VALUE),
    )


def phi(x: float) -> float:
    return x + 1 if x > 0 else math.exp(x)


def by_loop(q: Tensor, k: Tensor, v: Tensor, sees: Callable[[int, int, int], bool]) -> Tensor:
    """The formula over single numbers."""
    out = torch.zeros(*q.shape[:3], v.shape[3], dtype=q.dtype)
    for b, h, i in torch.cartesian_prod(*map(torch.arange, q.shape[:3])).tolist():
        g, total = h // (q.shape[1] // k.shape[1]), 0.0
        for j in range(k.shape[2]):
            if sees(b, i + k.shape[2] - q.shape[2], j):
                pairs = zip(q[b, h, i].tolist(), k[b, g, j].tolist(), strict=True)
                weight = sum(phi(x) * phi(y) for x, y in pairs)
                total += weight
                out[b, h, i] += weight * v[b, g, j]
        out[b, h, i] /= total or 1.0
    return out


def gradients(out: Tensor, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    draw = torch.Generator().manual_seed(9)
    grad = torch.randn(out.shape, dtype=torch.float64, generator=draw).to(out.dtype)
    return torch.autograd.grad(out, tuple(inputs), grad)


def assert_same(out: Tensor, wanted: Tensor, inputs: Sequence[Tensor]) -> None:
    """Output and the gradient of each input, in float64."""
    torch.testing.assert_close(out, wanted, rtol=0, atol=1e-12)
    for got, due in zip(gradients(out, inputs), gradients(wanted, inputs), strict=True):
        torch.testing.assert_close(got, due, rtol=0, atol=1e-11)


# Values and gradients


@pytest.mark.parametrize("causal", [True, False])
def test_it_is_the_formula(causal: bool) -> None:
    q, k, v = (x.detach() for x in qkv(4, 6))
    real = torch.tensor([[True] * 6, [False, False, False, True, False, True]])
    mask = Mask.padding(real) & Mask.causal() if causal else Mask.padding(real)
    wanted = by_loop(q, k, v, lambda b, p, j: bool(real[b, j]) and (j <= p or not causal))
    variant = Linear()
    torch.testing.assert_close(variant(q, k, v, mask), wanted, rtol=0, atol=1e-13)
    torch.testing.assert_close(variant.expected(q, k, v, mask), wanted, rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    ("queries", "keys"),
    [(1, 1), (3, 3), (63, 63), (64, 64), (65, 65), (130, 130), (1, 70), (64, 65), (70, 150)],
)
@pytest.mark.parametrize("padded", [False, True])
def test_causal_equals_the_definition(queries: int, keys: int, padded: bool) -> None:
    x = qkv(queries, keys)
    real = torch.rand(2, keys, generator=torch.Generator().manual_seed(3)) > 0.3
    real[0, : keys // 2] = False
    mask = Mask.causal() & Mask.padding(real) if padded else Mask.causal()
    variant = Linear()
    assert_same(variant(*x, mask), variant.expected(*x, mask), x)


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (7, 7), (64, 130), (130, 65), (3, 1)])
@pytest.mark.parametrize("padded", [False, True])
def test_over_all_keys_equals_the_definition(queries: int, keys: int, padded: bool) -> None:
    x = qkv(queries, keys)
    real = torch.arange(keys) < torch.tensor([[keys], [keys // 2]])
    mask = Mask.padding(real) if padded else Mask.full()
    variant = Linear()
    assert_same(variant(*x, mask), variant.expected(*x, mask), x)


@pytest.mark.parametrize("rows", [1, 512])
@pytest.mark.parametrize("mask", [Mask.causal(), Mask.full()], ids=["causal", "full"])
def test_chunks_go_together_or_one_by_one(
    rows: int, mask: Mask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where heads are many each chunk goes alone; here two of them, and a rest, or each alone."""
    monkeypatch.setattr(linear_chunks, "ROWS", rows)
    x, variant = qkv(330, 330), Linear()
    keep = torch.rand(2, 330, generator=torch.Generator().manual_seed(3)) > 0.3
    for m in (mask, mask & Mask.padding(keep)):
        assert_same(variant(*x, m), variant.expected(*x, m), x)


@pytest.mark.parametrize("prefix", [1, 5, 30, 70, 90, 500])
@pytest.mark.parametrize(("queries", "keys"), [(90, 90), (70, 90)])
def test_a_prefix_is_seen_by_all(queries: int, keys: int, prefix: int) -> None:
    x, mask, variant = qkv(queries, keys), Mask.causal(prefix), Linear()
    assert_same(variant(*x, mask), variant.expected(*x, mask), x)


def test_gradcheck_of_each_operator() -> None:
    q, k, v = qkv(70, 70, batch=1)
    q, k, v = (x.detach()[:, :2, :, :2].requires_grad_() for x in (q, k, v))
    s = torch.randn(1, 2, 2, 2, dtype=torch.float64, requires_grad=True)
    z = torch.rand(1, 2, 1, 2, dtype=torch.float64, requires_grad=True)
    keep = torch.rand(1, 70, generator=torch.Generator().manual_seed(4)) > 0.3

    def scan(*x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        out, _, s, z = linear_kernel.scan(*x[:3], keep, *x[3:])
        return out, s, z

    check = torch.autograd.gradcheck
    assert check(scan, (q, k, v, s, z), fast_mode=True)
    assert check(
        lambda k, v, s, z: linear_kernel.absorb(k, v, keep, s, z), (k, v, s, z), fast_mode=True
    )
    assert check(lambda *x: linear_kernel.read(*x)[0], (q, s, z), fast_mode=True)


def test_the_operators_keep_their_promises_to_torch() -> None:
    q, k, v = qkv(70, 70, batch=1)
    s, z = torch.zeros(1, 2, WIDTH, VALUE).double(), torch.zeros(1, 2, 1, WIDTH).double()
    keep = torch.ones(1, 70, dtype=torch.bool)
    torch.library.opcheck(linear_kernel.scan, (q, k, v, keep, s, z))
    torch.library.opcheck(linear_kernel.absorb, (k, v, None, s, z))
    torch.library.opcheck(linear_kernel.read, (q, s, z + 1))


# Causality and padding


@pytest.mark.parametrize("row", [0, 63, 64, 100])
def test_no_gradient_comes_from_the_future(row: int) -> None:
    x = qkv(130, 130)
    _, gk, gv = torch.autograd.grad(Linear()(*x, Mask.causal())[:, :, row].square().sum(), x)
    assert not gk[:, :, row + 1 :].any()
    assert not gv[:, :, row + 1 :].any()
    assert (gv[:, :, : row + 1] != 0).all()


@pytest.mark.parametrize("where", ["left", "right", "middle"])
@pytest.mark.parametrize("causal", [True, False])
def test_padding_is_as_if_it_were_not_there(where: str, causal: bool) -> None:
    order = Mask.causal() if causal else Mask.full()
    rows = {"left": range(9, 79), "right": range(70), "middle": [*range(30), *range(39, 79)]}[where]
    short, index = qkv(70, 70, batch=1), torch.tensor(list(rows))
    long = [torch.full((1, x.shape[1], 79, x.shape[3]), 1e3).double() for x in short]
    long = [
        x.index_copy(2, index, y.detach()).requires_grad_()
        for x, y in zip(long, short, strict=True)
    ]
    keep = torch.zeros(1, 79, dtype=torch.bool)
    keep[:, index] = True
    variant = Linear()
    out, wanted = variant(*long, order & Mask.padding(keep))[:, :, index], variant(*short, order)
    torch.testing.assert_close(out, wanted, rtol=0, atol=1e-12)
    for got, due in zip(gradients(out, long), gradients(wanted, short), strict=True):
        torch.testing.assert_close(got[:, :, index], due, rtol=0, atol=1e-11)
    assert not any(
        g[:, :, ~keep[0]].any()
        for g in gradients(variant(*long, order & Mask.padding(keep)), long)[1:]
    )


@pytest.mark.parametrize("causal", [True, False])
def test_a_query_without_keys_gives_zeros_and_gets_zeros(causal: bool) -> None:
    x, keep = qkv(70, 70), torch.ones(2, 70, dtype=torch.bool)
    keep[0] = False
    keep[1, :5] = False
    mask = Mask.padding(keep) & Mask.causal() if causal else Mask.padding(keep)
    out = Linear()(*x, mask)
    found = torch.autograd.grad(out.square().sum() + out.sum(), x)
    assert all(torch.isfinite(g).all() for g in found)
    assert not out[0].any()
    assert not any(g[0].any() for g in found)
    assert out[1, :, :5].any() != causal


# Extremes


@pytest.mark.parametrize("level", [-8.0, -20.0, -40.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("mask", [Mask.causal(), Mask.full()], ids=["causal", "full"])
def test_rows_sum_to_one_whatever_the_level(level: float, dtype: torch.dtype, mask: Mask) -> None:
    q, k, v = (x.detach().to(dtype) for x in qkv(70, 70))
    out = Linear()(q + level, k + level, torch.ones_like(v), mask)
    assert out.dtype == dtype
    torch.testing.assert_close(
        out, torch.ones_like(out), rtol=0, atol=2 * torch.finfo(dtype).eps + 2e-6
    )


def test_no_query_is_too_small_and_keys_may_reach_minus_80() -> None:
    x = [x.detach() for x in qkv(70, 70)]
    far = [x[0] - 300, x[1] - 75, x[2]]
    variant, mask = Linear(), Mask.causal()
    # In float64 the definition holds both.
    wanted = variant.expected(*far, mask)
    narrow = [y.float() for y in far]
    torch.testing.assert_close(variant(*narrow, mask).double(), wanted, rtol=0, atol=2e-4)
    out = in_pieces(variant, narrow, [1] * 70)[0]
    torch.testing.assert_close(out.double(), wanted, rtol=0, atol=2e-4)


def test_sums_of_half_types_do_not_overflow() -> None:
    q, k = (
        torch.full((1, 1, 4096, 4), 20.0, dtype=torch.float16).requires_grad_() for _ in range(2)
    )
    v = torch.linspace(0, 1, 4096).half()[None, None, :, None]
    out = Linear()(q, k, v)
    torch.testing.assert_close(out, torch.full_like(out, 0.5), rtol=0, atol=2e-3)
    assert all(torch.isfinite(g).all() for g in torch.autograd.grad(out.sum(), (q, k)))


# Decoding


def in_pieces(
    variant: polyattn.SequenceAttention,
    x: Sequence[Tensor],
    pieces: Sequence[int],
    keep: Tensor | None = None,
) -> tuple[Tensor, polyattn.State]:
    state = variant.new_state(x[0].shape[0], SIZES, dtype=x[0].dtype)
    outs, start = [], 0
    for tokens in pieces:
        rows = slice(start, start + tokens)
        mask = Mask.full() if keep is None else Mask.padding(keep[:, rows])
        out, state = variant.extend(*(y[:, :, rows] for y in x), state, mask)
        outs.append(out)
        start += tokens
    return torch.cat(outs, 2), state


@pytest.mark.parametrize("pieces", [[1] * 9, [5, 4], [1, 7, 1], [70], [65, 1, 70], [1, 130]])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("grad", [True, False])
def test_any_cutting_gives_the_whole(pieces: list[int], padded: bool, grad: bool) -> None:
    length = sum(pieces)
    x = qkv(length, length)
    keep = None
    if padded:
        keep = torch.rand(2, length, generator=torch.Generator().manual_seed(5)) > 0.4
        keep[0, :3] = False
    whole = Mask.causal() if keep is None else Mask.causal() & Mask.padding(keep)
    with torch.set_grad_enabled(grad):
        out, state = in_pieces(Linear(), x, pieces, keep)
        wanted = Linear()(*x, whole)
        if grad:
            assert_same(out, wanted, x)
        else:
            torch.testing.assert_close(out, wanted, rtol=0, atol=1e-12)
    assert state.length == length


def test_a_state_is_a_value_of_constant_size() -> None:
    variant, x = Linear(), [x.detach() for x in qkv(6, 6)]
    _, state = in_pieces(variant, x, [6])
    assert isinstance(state, RecurrentState)
    held = {name: t.clone() for name, t in state.tensors.items()}
    new = [y.detach() for y in qkv(1, 1, seed=1)]
    first, after = variant.extend(*new, state)
    again, _ = variant.extend(*new, state)
    assert torch.equal(first, again)
    assert all(torch.equal(t, held[name]) for name, t in state.tensors.items())
    assert after.nbytes == state.nbytes == 8 * 2 * KEY_HEADS * WIDTH * (VALUE + 1)
    turned = state.reorder(torch.tensor([1, 0, 1]))
    out, _ = variant.extend(*(y[[1, 0, 1]] for y in new), turned)
    torch.testing.assert_close(out, first[[1, 0, 1]])


def test_half_types_decode_in_their_own_type() -> None:
    x = [y.detach().bfloat16() for y in qkv(9, 9)]
    with torch.no_grad():
        out, state = in_pieces(Linear(), x, [4, 1, 1, 3])
    assert out.dtype == torch.bfloat16
    assert isinstance(state, RecurrentState)
    assert {t.dtype for t in state.tensors.values()} == {torch.float32}
    torch.testing.assert_close(out, Linear()(*x, Mask.causal()), rtol=2e-2, atol=2e-2)


# What it refuses, and what it costs


@pytest.mark.parametrize(
    ("part", "mask"),
    [
        ("window", Mask.window(3, 0)),
        ("dense", Mask.dense(torch.ones(5, 5, dtype=torch.bool))),
        ("bias", Mask.bias(torch.zeros(5, 5))),
        ("alibi", Mask.alibi(torch.ones(4))),
        ("segments", Mask.segments(torch.zeros(2, 5, dtype=torch.long))),
    ],
)
def test_it_refuses_what_sums_cannot_do(part: str, mask: Mask) -> None:
    with pytest.raises(Unsupported, match=part):
        Linear()(*qkv(5, 5), mask)


@pytest.mark.parametrize("option", ["scale", "dropout"])
def test_it_has_no_options(option: str) -> None:
    with pytest.raises(ConfigError, match=option):
        polyattn.create("linear", **{option: 0.5})


@pytest.mark.parametrize("padded", [False, True])
def test_it_compiles_whole_with_two_graphs_at_most(padded: bool) -> None:
    torch._dynamo.reset()
    counter, variant = CompileCounterWithBackend("aot_eager"), Linear()
    compiled = torch.compile(variant, backend=counter, fullgraph=True)
    for length in (70, 130, 201):
        x = qkv(length, length)
        mask = Mask.causal()
        if padded:
            mask = mask & Mask.padding(torch.arange(length) < torch.tensor([[length], [50]]))
        assert_same(compiled(*x, mask), variant(*x, mask), x)
    assert counter.frame_count <= 2


def test_memory_is_the_output_and_some_buffers() -> None:
    q = torch.randn(1, 8, 8192, 64)
    variant, mask = Linear(), Mask.causal()
    with torch.no_grad():
        assert peak_bytes(lambda: variant(q, q, q, mask)) <= 1.5 * q.nbytes


def test_saved_memory_grows_with_the_length() -> None:
    def saved(length: int) -> int:
        held: dict[int, int] = {}

        def keep(x: Tensor) -> Tensor:
            held[x.data_ptr()] = x.nbytes
            return x

        x = qkv(length, length)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            Linear()(*x, Mask.causal())
        return sum(held.values())

    assert saved(1024) < 4.1 * saved(256)
