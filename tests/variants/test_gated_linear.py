"""`gated_linear` against a loop over the formula, and its chunks and states against each other.

Chunks hold 64 tokens and are halved down to single ones, so the lengths lie around powers of two.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

import polyattn
from polyattn import Mask, RecurrentState, Sizes
from polyattn.errors import ConfigError, ShapeError, Unsupported
from polyattn_plugins import gated_kernel
from polyattn_plugins.gated import GatedLinear

HEADS, KEY_HEADS, WIDTH, VALUE = 4, 2, 5, 3
SIZES = Sizes(HEADS, WIDTH, KEY_HEADS, VALUE)
CAUSAL = Mask.causal()
QUICK = GatedLinear.Config(temperature=1.0)
"""Decays that halve within a token or two, where a mistake in them shows."""


def drawn(queries: int, keys: int, batch: int = 2, seed: int = 0) -> list[Tensor]:
    """q, k, v and gate."""
    draw = torch.Generator().manual_seed(seed)

    def one(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=draw).requires_grad_()

    return [
        one(batch, HEADS, queries, WIDTH),
        one(batch, KEY_HEADS, keys, WIDTH),
        one(batch, KEY_HEADS, keys, VALUE),
        one(batch, KEY_HEADS, keys, WIDTH),
    ]


def called(variant: GatedLinear, x: Sequence[Tensor], mask: Mask = CAUSAL) -> Tensor:
    return variant(*x[:3], mask, {"gate": x[3]})


def by_loop(
    x: Sequence[Tensor], scale: float, temperature: float, real: Tensor | None = None
) -> Tensor:
    """The recurrence over single numbers."""
    q, k, v, gate = (y.tolist() for y in x)
    batch, heads, queries, _ = x[0].shape
    keys, groups = x[1].shape[2], heads // x[1].shape[1]
    out = torch.zeros(batch, heads, queries, VALUE, dtype=torch.float64)
    for b in range(batch):
        for h in range(heads):
            state, g = [[0.0] * VALUE for _ in range(WIDTH)], h // groups
            for t in range(keys):
                if real is None or real[b, t]:
                    for d in range(WIDTH):
                        keeps = (1 / (1 + math.exp(-gate[b][g][t][d]))) ** (1 / temperature)
                        for e in range(VALUE):
                            state[d][e] = keeps * state[d][e] + k[b][g][t][d] * v[b][g][t][e]
                i = t - (keys - queries)
                if i >= 0:
                    for e in range(VALUE):
                        read = sum(q[b][h][i][d] * state[d][e] for d in range(WIDTH))
                        out[b, h, i, e] = scale * read
    return out


def gradients(out: Tensor, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    draw = torch.Generator().manual_seed(9)
    grad = torch.randn(out.shape, dtype=torch.float64, generator=draw).to(out.dtype)
    return torch.autograd.grad(out, tuple(inputs), grad)


def assert_same(out: Tensor, wanted: Tensor, inputs: Sequence[Tensor]) -> None:
    torch.testing.assert_close(out, wanted, rtol=0, atol=1e-11)
    for got, due in zip(gradients(out, inputs), gradients(wanted, inputs), strict=True):
        torch.testing.assert_close(got, due, rtol=0, atol=1e-10)


# Values and gradients


@pytest.mark.parametrize("config", [*GatedLinear.examples(), QUICK], ids=str)
@pytest.mark.parametrize(("queries", "keys"), [(9, 9), (4, 9)])
def test_it_is_the_formula(config: GatedLinear.Config, queries: int, keys: int) -> None:
    x = [y.detach() for y in drawn(queries, keys)]
    real = torch.rand(2, keys, generator=torch.Generator().manual_seed(1)) > 0.4
    variant = GatedLinear(config)
    scale = WIDTH**-0.5 if config.scale is None else config.scale
    for mask, kept in ((CAUSAL, None), (CAUSAL & Mask.padding(real), real)):
        wanted = by_loop(x, scale, config.temperature, kept)
        torch.testing.assert_close(called(variant, x, mask), wanted, rtol=0, atol=1e-12)
        found = variant.expected(*x[:3], mask, {"gate": x[3]})
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("queries", "keys"),
    [(1, 1), (2, 2), (7, 7), (8, 8), (63, 63), (64, 64), (65, 65), (130, 130), (1, 70), (70, 150)],
)
@pytest.mark.parametrize("config", [GatedLinear.Config(), QUICK], ids=str)
@pytest.mark.parametrize("padded", [False, True])
def test_chunks_equal_the_definition(
    queries: int, keys: int, config: GatedLinear.Config, padded: bool
) -> None:
    x, mask = drawn(queries, keys), CAUSAL
    if padded:
        real = torch.rand(2, keys, generator=torch.Generator().manual_seed(3)) > 0.3
        real[0, : keys // 2] = False
        mask = mask & Mask.padding(real)
    variant = GatedLinear(config)
    assert_same(called(variant, x, mask), variant.expected(*x[:3], mask, {"gate": x[3]}), x)


@pytest.mark.parametrize("rows", [1, 512])
def test_chunks_go_together_or_one_by_one(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where heads are many each chunk goes alone; here two of them, and a rest, or each alone."""
    monkeypatch.setattr(gated_kernel, "ROWS", rows)
    x, variant = drawn(330, 330), GatedLinear()
    assert_same(called(variant, x), variant.expected(*x[:3], CAUSAL, {"gate": x[3]}), x)


def test_gradcheck_with_gate_and_state() -> None:
    q, k, v, gate = (y.detach()[:, :2, :, :2].requires_grad_() for y in drawn(70, 70, batch=1))
    s = torch.randn(1, 2, 2, 2, dtype=torch.float64, requires_grad=True)

    def scan(*x: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v, gate, s = x
        out, after = gated_kernel.scan(q, k, v, torch.nn.functional.logsigmoid(gate), s, 0.7)
        return out, after

    assert torch.autograd.gradcheck(scan, (q, k, v, gate, s), fast_mode=True)


def test_the_operator_keeps_its_promises_to_torch() -> None:
    q, k, v, gate = drawn(70, 70, batch=1)
    s = torch.zeros(1, KEY_HEADS, WIDTH, VALUE, dtype=torch.float64)
    decay = torch.nn.functional.logsigmoid(gate).detach().requires_grad_()
    torch.library.opcheck(gated_kernel.scan, (q, k, v, decay, s, 0.7))


@pytest.mark.parametrize("row", [0, 31, 64, 100])
def test_no_gradient_comes_from_the_future(row: int) -> None:
    x = drawn(130, 130)
    out = called(GatedLinear(), x)[:, :, row].square().sum()
    for name, g in zip("kvg", torch.autograd.grad(out, x)[1:], strict=True):
        assert not g[:, :, row + 1 :].any()
        # The first decay acts on a state of zeros.
        first = 1 if name == "g" else 0
        assert (g[:, :, first : row + 1] != 0).all()


# Strong and weak decays


@pytest.mark.parametrize("level", [-2000.0, -200.0, 0.0, 200.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_any_strength_of_decay_is_finite_and_right(level: float, dtype: torch.dtype) -> None:
    q, k, v, gate = (y.detach() for y in drawn(130, 130))
    # Resets, strong and weak decays side by side in one channel, in one chunk.
    kind = torch.rand(gate.shape, generator=torch.Generator().manual_seed(6))
    gate = torch.where(kind < 0.3, gate + level, gate)
    x = [y.to(dtype).requires_grad_() for y in (q, k, v, gate)]
    wide = [y.detach().double().requires_grad_() for y in x]
    variant = GatedLinear(QUICK)
    out, wanted = called(variant, x), variant.expected(*wide[:3], CAUSAL, {"gate": wide[3]})
    near = 2e-6 if dtype == torch.float32 else 3e-2
    torch.testing.assert_close(out.double(), wanted, rtol=near, atol=near)
    for got, due in zip(gradients(out, x), gradients(wanted, wide), strict=True):
        assert torch.isfinite(got).all()
        torch.testing.assert_close(got.double(), due, rtol=5 * near, atol=10 * near)


def test_without_decay_it_is_a_plain_sum() -> None:
    x = [y.detach() for y in drawn(70, 70)]
    x[3] = torch.full_like(x[3], 1e4)
    q, k, v = x[0], *(y.repeat_interleave(2, 1) for y in x[1:3])
    wanted = ((q @ k.mT).tril() @ v) / WIDTH**0.5
    torch.testing.assert_close(called(GatedLinear(), x), wanted, rtol=0, atol=1e-10)


# Padding and decoding


@pytest.mark.parametrize("where", ["left", "right", "middle"])
def test_padding_neither_enters_nor_decays(where: str) -> None:
    rows = {"left": range(9, 79), "right": range(70), "middle": [*range(30), *range(39, 79)]}[where]
    short, index = drawn(70, 70, batch=1), torch.tensor(list(rows))
    long = [torch.full((1, y.shape[1], 79, y.shape[3]), -1e3).double() for y in short]
    long = [
        y.index_copy(2, index, z.detach()).requires_grad_()
        for y, z in zip(long, short, strict=True)
    ]
    keep = torch.zeros(1, 79, dtype=torch.bool)
    keep[:, index] = True
    variant, mask = GatedLinear(QUICK), CAUSAL & Mask.padding(keep)
    out, wanted = called(variant, long, mask)[:, :, index], called(variant, short)
    torch.testing.assert_close(out, wanted, rtol=0, atol=1e-12)
    found = gradients(out, long)
    for got, due in zip(found, gradients(wanted, short), strict=True):
        torch.testing.assert_close(got[:, :, index], due, rtol=0, atol=1e-11)
    assert not any(g[:, :, ~keep[0]].any() for g in found[1:])


def in_pieces(
    variant: GatedLinear, x: Sequence[Tensor], pieces: Sequence[int], keep: Tensor | None = None
) -> tuple[Tensor, polyattn.State]:
    state = variant.new_state(x[0].shape[0], SIZES, dtype=x[0].dtype)
    outs, start = [], 0
    for tokens in pieces:
        rows = slice(start, start + tokens)
        mask = Mask.full() if keep is None else Mask.padding(keep[:, rows])
        q, k, v, gate = (y[:, :, rows] for y in x)
        inputs: Mapping[str, Tensor] = {"gate": gate}
        out, state = variant.extend(q, k, v, state, mask, inputs)
        outs.append(out)
        start += tokens
    return torch.cat(outs, 2), state


@pytest.mark.parametrize("pieces", [[1] * 9, [5, 4], [1, 7, 1], [70], [65, 1, 70], [1, 130]])
@pytest.mark.parametrize("padded", [False, True])
def test_any_cutting_gives_the_whole(pieces: list[int], padded: bool) -> None:
    length = sum(pieces)
    x, keep, mask = drawn(length, length), None, CAUSAL
    if padded:
        keep = torch.rand(2, length, generator=torch.Generator().manual_seed(5)) > 0.4
        keep[0, :3] = False
        mask = mask & Mask.padding(keep)
    variant = GatedLinear(QUICK)
    out, state = in_pieces(variant, x, pieces, keep)
    assert_same(out, called(variant, x, mask), x)
    assert state.length == length


def test_a_state_is_a_value_of_constant_size() -> None:
    variant, x = GatedLinear(), [y.detach() for y in drawn(6, 6)]
    _, state = in_pieces(variant, x, [6])
    assert isinstance(state, RecurrentState)
    held = state.tensors["s"].clone()
    q, k, v, gate = (y.detach() for y in drawn(1, 1, seed=1))
    first, after = variant.extend(q, k, v, state, None, {"gate": gate})
    again, _ = variant.extend(q, k, v, state, None, {"gate": gate})
    assert torch.equal(first, again)
    assert torch.equal(state.tensors["s"], held)
    assert after.nbytes == state.nbytes == 8 * 2 * KEY_HEADS * WIDTH * VALUE
    order = torch.tensor([1, 0, 1])
    q, k, v, gate = (y[order] for y in (q, k, v, gate))
    out, _ = variant.extend(q, k, v, state.reorder(order), None, {"gate": gate})
    torch.testing.assert_close(out, first[order])


def test_no_real_key_gives_zeros() -> None:
    x, keep = drawn(70, 70), torch.ones(2, 70, dtype=torch.bool)
    keep[0] = False
    out = called(GatedLinear(), x, CAUSAL & Mask.padding(keep))
    assert not out[0].any()
    found = torch.autograd.grad(out.square().sum(), x)
    assert all(torch.isfinite(g).all() and not g[0].any() for g in found)


# What it refuses, and compiling


def test_it_is_causal_or_nothing() -> None:
    x = drawn(5, 5)
    for mask in (Mask.full(), Mask.padding(torch.ones(2, 5, dtype=torch.bool))):
        with pytest.raises(Unsupported, match="causal"):
            called(GatedLinear(), x, mask)
    with pytest.raises(Unsupported, match="prefix"):
        called(GatedLinear(), x, Mask.causal(2))
    with pytest.raises(Unsupported, match="window"):
        called(GatedLinear(), x, CAUSAL & Mask.window(3, 0))


def test_the_gate_must_come_and_must_fit() -> None:
    q, k, v, gate = drawn(5, 5)
    with pytest.raises(ShapeError, match="gate"):
        GatedLinear()(q, k, v, CAUSAL)
    with pytest.raises(ShapeError, match="gate"):
        GatedLinear()(q, k, v, CAUSAL, {"gate": gate[..., :1]})


@pytest.mark.parametrize("option", ["temperature", "scale"])
def test_options_are_positive(option: str) -> None:
    with pytest.raises(ConfigError, match=option):
        GatedLinear.Config(**{option: 0.0})


@pytest.mark.parametrize("padded", [False, True])
def test_it_compiles_whole_with_two_graphs_at_most(padded: bool) -> None:
    torch._dynamo.reset()
    counter, variant = CompileCounterWithBackend("aot_eager"), GatedLinear()
    compiled = torch.compile(variant, backend=counter, fullgraph=True)
    for length in (70, 130, 201):
        x, mask = drawn(length, length), CAUSAL
        if padded:
            mask = mask & Mask.padding(torch.arange(length) < torch.tensor([[length], [50]]))
        assert_same(called(compiled, x, mask), called(variant, x, mask), x)
    assert counter.frame_count <= 2
