"""The window kernel, ``local_window`` and ``windowed``, against a loop over single pairs.

Forward chunks here hold 32 queries and backward chunks 64, so the lengths lie around those.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import polyattn
from polyattn import Mask, Unsupported
from polyattn.measure.memory import peak_bytes
from polyattn_plugins.window import LocalWindow, Windowed
from polyattn_plugins.window_kernel import window_attention

Sees = Callable[[int, int, int], bool]
CAUSAL_WINDOW = Mask.causal() & Mask.window(6, 0)


def tensors(
    batch: int, heads: int, queries: int, keys: int, width: int = 4, value: int = 4, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)

    def one(*shape: int) -> Tensor:
        drawn = torch.randn(*shape, dtype=torch.float64, generator=draw)
        return drawn.requires_grad_()

    return (
        one(batch, heads, queries, width),
        one(batch, heads, keys, width),
        one(batch, heads, keys, value),
    )


def by_loop(
    q: Tensor, k: Tensor, v: Tensor, sees: Sees, scale: float, slopes: Tensor | None = None
) -> Tensor:
    """The definition, one query at a time, without a matrix product or a softmax."""
    batch, heads, queries, _ = q.shape
    offset = k.shape[2] - queries
    samples = []
    for b in range(batch):
        rows = []
        for i in range(queries):
            seen = [j for j in range(k.shape[2]) if sees(b, i + offset, j)]
            if not seen:
                rows.append(v.new_zeros(heads, v.shape[3]))
                continue
            logits = scale * (q[b, :, i, None] * k[b][:, seen]).sum(-1)
            if slopes is not None:
                away = torch.tensor([abs(i + offset - j) for j in seen], dtype=torch.float64)
                logits = logits - slopes[:, None] * away
            odds = (logits - logits.detach().amax(-1, keepdim=True)).exp()
            share = odds / odds.sum(-1, keepdim=True)
            rows.append((share[..., None] * v[b][:, seen]).sum(1))
        samples.append(torch.stack(rows, dim=1))
    return torch.stack(samples)


def compare(out: Tensor, wanted: Tensor, inputs: tuple[Tensor, ...]) -> None:
    """Output and the gradient of each input, in float64."""
    torch.testing.assert_close(out, wanted, rtol=0, atol=1e-11)
    draw = torch.Generator().manual_seed(9)
    grad = torch.randn(out.shape, dtype=out.dtype, generator=draw)
    got = torch.autograd.grad(out, inputs, grad)
    due = torch.autograd.grad(wanted, inputs, grad, retain_graph=True)
    for one, other in zip(got, due, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


# Values and gradients


@pytest.mark.parametrize(
    ("queries", "keys", "left", "right"),
    [
        (1, 1, 0, 0),
        (5, 5, 2, 0),
        (31, 31, 5, 0),
        (32, 32, 5, 2),
        (33, 33, 0, 4),
        (64, 64, 7, 3),
        (65, 65, 0, 0),
        (97, 97, 40, 1),
        (129, 129, 6, 6),
        (40, 40, 100, 100),
        (33, 70, 9, 2),
        (1, 70, 9, 0),
        (70, 71, 3, 1),
        (130, 300, 33, 0),
    ],
)
def test_equals_the_loop(queries: int, keys: int, left: int, right: int) -> None:
    q, k, v = tensors(2, 2, queries, keys, 4, 3)
    wanted = by_loop(q, k, v, lambda b, p, j: p - left <= j <= p + right, 0.5)
    compare(polyattn.create("local_window", left=left, right=right)(q, k, v), wanted, (q, k, v))


@pytest.mark.parametrize("right", [0, 3])
@pytest.mark.parametrize(("batch", "queries", "keys"), [(5, 70, 70), (5, 40, 70), (1, 170, 200)])
def test_all_mask_parts_together(batch: int, queries: int, keys: int, right: int) -> None:
    """Padding that empties rows, segments, slopes and a narrower window, with L = S and L < S.

    Five samples go together by chunk, a single one has its chunks go together.
    """
    left = 8
    q, k, v = tensors(batch, 3, queries, keys)
    draw = torch.Generator().manual_seed(1)
    real = torch.rand(batch, keys, generator=draw) > 0.5
    real[0, :20] = False
    ids = torch.randint(0, 3, (batch, keys), generator=draw).sort(-1)[0]
    slopes = torch.tensor([0.5, 0.25, 0.125], dtype=torch.float64, requires_grad=True)
    mask = Mask.window(6, 2) & Mask.padding(real) & Mask.alibi(slopes)
    mask = mask & Mask.segments(ids[:, keys - queries :], ids)

    def sees(b: int, p: int, j: int) -> bool:
        near = p - 6 <= j <= p + min(right, 2)
        return near and bool(real[b, j]) and bool(ids[b, p] == ids[b, j])

    out = polyattn.create("local_window", left=left, right=right)(q, k, v, mask)
    compare(out, by_loop(q, k, v, sees, 0.5, slopes), (q, k, v, slopes))


@pytest.mark.parametrize("parts", ["padding", "segments", "alibi"])
def test_each_mask_part_alone(parts: str) -> None:
    q, k, v = tensors(2, 2, 170, 170)
    real = torch.arange(170) < torch.tensor([[170], [50]])
    ids = (torch.arange(170) // 30).expand(2, 170)
    slopes = torch.tensor([1.0, 0.1], dtype=torch.float64)
    given = {
        "padding": Mask.padding(real),
        "segments": Mask.segments(ids),
        "alibi": Mask.alibi(slopes),
    }[parts]

    def sees(b: int, p: int, j: int) -> bool:
        near = p - 6 <= j <= p
        if parts == "padding":
            return near and bool(real[b, j])
        return near and (parts != "segments" or bool(ids[b, p] == ids[b, j]))

    wanted = by_loop(q, k, v, sees, 0.5, slopes if parts == "alibi" else None)
    compare(polyattn.create("local_window", left=6)(q, k, v, given), wanted, (q, k, v))


@pytest.mark.parametrize("heads", [1, 9, 17])
def test_any_number_of_heads(heads: int) -> None:
    """The backward pass takes eight heads together, of one sample or of several."""
    q, k, v = tensors(3, heads, 66, 66)
    variant = polyattn.create("local_window", left=4, right=1)
    compare(variant(q, k, v), variant.expected(q, k, v), (q, k, v))


def test_gradcheck() -> None:
    inputs = tensors(1, 2, 9, 9, 3, 2)
    real = torch.tensor([[False, False, True, True, True, False, True, True, True]])
    variant = polyattn.create("local_window", left=2, right=1)
    assert torch.autograd.gradcheck(lambda q, k, v: variant(q, k, v, Mask.padding(real)), inputs)


@pytest.mark.parametrize(("left", "right"), [(2, 0), (0, 3), (2, 1), (0, 0), (40, 33)])
def test_sees_exactly_its_window(left: int, right: int) -> None:
    _, _, v = tensors(1, 1, 100, 100)
    q, k = torch.zeros(1, 1, 100, 4).double(), torch.zeros(1, 1, 100, 4).double()
    out = polyattn.create("local_window", left=left, right=right)(q, k, v)
    for i in (0, 31, 32, 50, 63, 64, 95, 99):
        (grad,) = torch.autograd.grad(out[0, 0, i].sum(), v, retain_graph=True)
        seen = grad[0, 0, :, 0].nonzero()[:, 0].tolist()
        assert seen == list(range(max(0, i - left), min(99, i + right) + 1))


def test_emptied_rows_are_zeros_with_zero_gradients() -> None:
    q, k, v = tensors(1, 1, 80, 80)
    real = torch.ones(1, 80, dtype=torch.bool)
    real[0, 30:60] = False
    out = polyattn.create("local_window", left=4)(q, k, v, Mask.padding(real))
    assert (out[0, 0, 34:60] == 0).all()
    assert (out[0, 0, 60:] != 0).all()
    grads = torch.autograd.grad(out.sum(), (q, k, v))
    assert all(grad.isfinite().all() for grad in grads)
    assert (grads[0][0, 0, 34:60] == 0).all()
    assert (grads[2][0, 0, 30:60] == 0).all()


def test_a_closed_key_cannot_win_by_its_size() -> None:
    q, k, v = tensors(1, 1, 70, 70)
    with torch.no_grad():
        k[0, 0, 40] = 1e12 * q[0, 0, 10].sign()
    variant = polyattn.create("local_window", left=3)
    out = variant(q, k, v)
    torch.testing.assert_close(out[:, :, :40], variant(*(x[:, :, :40] for x in (q, k, v))))


def test_nan_stays_with_the_chunks_that_read_it() -> None:
    q, k, v = tensors(1, 2, 400, 400)
    variant = polyattn.create("local_window", left=5)
    clean = variant(q, k, v).detach()
    with torch.no_grad():
        k[:, :, 200], v[:, :, 200] = math.nan, math.inf
    out = variant(q, k, v)
    assert out[:, :, 200].isnan().all()
    # A chunk reads at most its own 32 queries, the window, and 16 keys more to fill up.
    torch.testing.assert_close(out[:, :, :160], clean[:, :, :160], rtol=0, atol=0)
    torch.testing.assert_close(out[:, :, 260:], clean[:, :, 260:], rtol=0, atol=0)
    (grad,) = torch.autograd.grad(out[:, :, :100].sum(), q)
    assert grad[:, :, :100].isfinite().all()


@pytest.mark.parametrize(
    ("dtype", "units"), [(torch.bfloat16, 0.3), (torch.float16, 0.3), (torch.float32, 8.0)]
)
def test_low_precision(dtype: torch.dtype, units: float) -> None:
    """Half types lose what the rounding of a result loses: sums are kept in float32."""
    rounded = [x.detach().to(dtype).requires_grad_() for x in tensors(1, 2, 140, 140, 16, 16)]
    slopes = polyattn.alibi_slopes(2)
    variant = polyattn.create("local_window", left=64)
    wanted = variant.expected(*(x.double() for x in rounded), Mask.alibi(slopes.double()))
    out = variant(*rounded, Mask.alibi(slopes))
    assert out.dtype == dtype
    unit = torch.finfo(dtype).eps
    assert (out.double() - wanted).abs().max() <= 3 * unit * wanted.abs().max()
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(3)).to(dtype)
    got = torch.autograd.grad(out, rounded, grad)
    due = torch.autograd.grad(wanted, rounded, grad.double())
    for one, other in zip(got, due, strict=True):
        assert (one.double() - other.double()).abs().max() <= units * unit * other.abs().max()


def test_autocast_changes_nothing() -> None:
    q, k, v = (x.float().detach() for x in tensors(1, 2, 70, 70))
    variant = polyattn.create("local_window", left=5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = variant(q, k, v)
    torch.testing.assert_close(out, variant(q, k, v), rtol=0, atol=0)


def test_strides_are_no_reason_to_refuse() -> None:
    q, k, v = tensors(2, 3, 90, 90)
    variant = polyattn.create("local_window", left=7)
    wanted = variant(q, k, v)
    merged = torch.stack([x.transpose(1, 2) for x in (q, k, v)], dim=2)
    heads_last = tuple(x.transpose(1, 2) for x in merged.unbind(2))
    apart = tuple(torch.stack([x, x], dim=-1)[..., 0] for x in (q, k, v))
    for given in (heads_last, apart):
        compare(variant(*given), wanted, (q, k, v))
    one = variant(q[:1].expand(2, -1, -1, -1), k[:1].expand(2, -1, -1, -1), v)
    torch.testing.assert_close(one[:1], wanted[:1], rtol=0, atol=1e-14)


def test_grouped_heads() -> None:
    q, k, v = tensors(2, 6, 70, 70)
    k, v = k[:, :2], v[:, :2]
    variant = polyattn.create("local_window", left=7)
    compare(variant(q, k, v), variant.expected(q, k, v), (q, k, v))


# Decoding


@pytest.mark.parametrize("cuts", [[1] * 90, [3, 5, 40, 1, 1, 40], [90], [7, 80, 3]])
@pytest.mark.parametrize("left", [0, 1, 9, 200])
def test_any_cutting_equals_one_call(cuts: list[int], left: int) -> None:
    q, k, v = tensors(2, 4, 90, 90)
    grouped = k[:, :2], v[:, :2]
    draw = torch.Generator().manual_seed(2)
    real = torch.rand(2, 90, generator=draw) > 0.3
    ids = (torch.arange(90) // 35).expand(2, 90)
    slopes = polyattn.alibi_slopes(4).double()
    variant = polyattn.create("local_window", left=left)

    def mask(at: slice) -> Mask:
        return Mask.padding(real[:, at]) & Mask.segments(ids[:, at]) & Mask.alibi(slopes)

    whole = variant(q, *grouped, Mask.causal() & mask(slice(None)))
    state, outs, start = variant.new_state(2, dtype=q.dtype), [], 0
    for cut in cuts:
        at = slice(start, start + cut)
        new = q[:, :, at], grouped[0][:, :, at], grouped[1][:, :, at]
        out, state = variant.extend(*new, state, mask(at))
        outs.append(out)
        start += cut
    compare(torch.cat(outs, dim=2), whole, (q, k, v))


def test_decodes_without_gradients_in_twice_the_window() -> None:
    q, k, v = (x.detach() for x in tensors(1, 4, 120, 120))
    k, v = k[:, :2], v[:, :2]
    variant = polyattn.create("local_window", left=10)
    whole = variant(q, k, v)
    _, state = variant.extend(
        q[:, :, :50], k[:, :, :50], v[:, :, :50], variant.new_state(1, dtype=q.dtype)
    )
    for i in range(50, 120):
        new = slice(i, i + 1)
        out, state = variant.extend(q[:, :, new], k[:, :, new], v[:, :, new], state)
        torch.testing.assert_close(out, whole[:, :, new], rtol=0, atol=1e-13)
        assert state.length == i + 1
        assert state.nbytes <= 2 * 10 * (k[:, :, 0].nbytes + v[:, :, 0].nbytes)


def test_a_narrower_window_while_decoding() -> None:
    q, k, v = (x.detach() for x in tensors(1, 2, 60, 60))
    variant = polyattn.create("local_window", left=20)
    whole = variant(q, k, v, Mask.window(4, 0))
    state = variant.new_state(1, dtype=q.dtype)
    for i in range(60):
        new = slice(i, i + 1)
        chunk = q[:, :, new], k[:, :, new], v[:, :, new]
        out, state = variant.extend(*chunk, state, Mask.window(4, 0))
        torch.testing.assert_close(out, whole[:, :, new], rtol=0, atol=1e-13)


# What is refused, and who answers


def refused(
    variant: Any, mask: Mask | None, option: str, queries: int = 20, keys: int = 20
) -> None:
    q, k, v = tensors(1, 2, queries, keys)
    with pytest.raises(Unsupported) as error:
        variant(q, k, v, mask)
    assert any(option in refusal.option for refusal in error.value.refusals)
    assert "\n" not in str(error.value)


def test_local_window_refuses_what_it_does_not_claim() -> None:
    variant = polyattn.create("local_window", left=3, right=2)
    refused(variant, Mask.dense(torch.ones(20, 20, dtype=torch.bool)), "mask")
    refused(variant, Mask.bias(torch.zeros(20, 20)), "mask")
    refused(variant, Mask.causal(prefix=4), "prefix")
    refused(variant, None, "length", queries=21)
    with pytest.raises(Unsupported, match="state"):
        variant.new_state(1)
    with pytest.raises(Unsupported, match="dropout"):
        polyattn.create("local_window", dropout=0.1)
    cross = polyattn.Call(cross=True)
    assert [r.option for r in variant.refusals(cross)] == ["cross"]


def test_a_prefix_out_of_sight_changes_nothing() -> None:
    q, k, v = tensors(1, 2, 40, 40)
    variant = polyattn.create("local_window", left=6)
    mask = Mask.causal(prefix=4)
    torch.testing.assert_close(variant(q, k, v, mask), variant.expected(q, k, v, mask))


@pytest.mark.parametrize("option", [{"left": -1}, {"right": -1}, {"left": 2.0}, {"lefft": 2}])
def test_bad_options(option: dict[str, Any]) -> None:
    with pytest.raises(polyattn.ConfigError, match=next(iter(option))):
        polyattn.create("local_window", **option)


def test_second_derivatives_are_refused() -> None:
    q, k, v = tensors(1, 1, 20, 20)
    out = polyattn.create("local_window", left=3)(q, k, v)
    (grad,) = torch.autograd.grad(out.sum(), q, create_graph=True)
    with pytest.raises(Unsupported, match="double_backward"):
        grad.sum().backward()


@pytest.mark.parametrize(
    "mask",
    [
        CAUSAL_WINDOW,
        Mask.window(3, 4),
        Mask.causal() & Mask.window(6, None),
        Mask.causal(prefix=9) & Mask.window(6, 0),
        CAUSAL_WINDOW & Mask.alibi(polyattn.alibi_slopes(2).double()),
        CAUSAL_WINDOW & Mask.lengths([50, 70], total=70),
        CAUSAL_WINDOW & Mask.documents([[30, 40], [70]]),
    ],
    ids=lambda mask: mask.text,
)
def test_windowed_answers_for_softmax(mask: Mask) -> None:
    q, k, v = tensors(2, 2, 70, 70)
    softmax = polyattn.create("softmax")
    call = polyattn.Call(
        device="cpu",
        dtype=q.dtype,
        queries=70,
        keys=70,
        parts=mask.parts,
        window=mask.span,
        prefix=mask.prefix,
    )
    assert softmax.choose(call).name == "windowed"
    compare(softmax(q, k, v, mask), polyattn.create("dense")(q, k, v, mask), (q, k, v))


def test_windowed_refuses_what_it_is_not_made_for() -> None:
    variant = polyattn.create("windowed")
    refused(variant, None, "mask")
    refused(variant, Mask.causal(), "mask")
    refused(variant, Mask.window(3, None), "window")
    refused(variant, Mask.causal() & Mask.window(None, 0), "window")
    refused(variant, Mask.window(19, 0), "length")
    refused(variant, Mask.window(5, 3) & Mask.causal(prefix=2), "prefix")
    q, k, v = tensors(1, 2, 20, 20)
    assert variant(q, k, v, Mask.window(18, 0)).shape == q.shape


def test_the_two_share_their_claims_but_for_the_mask() -> None:
    assert Windowed.capabilities.requires == {"window"}
    assert LocalWindow.capabilities_for(LocalWindow.Config(right=1)).state == "none"
    assert LocalWindow.capabilities_for(LocalWindow.Config()).state == "sliding"


# Compilation and memory


@pytest.mark.parametrize("name", ["local_window", "windowed"])
def test_compiles_to_one_graph_for_all_lengths(name: str) -> None:
    torch._dynamo.reset()
    variant = polyattn.create(name, **({"left": 6} if name == "local_window" else {}))
    graphs = []

    def count(graph: torch.fx.GraphModule, example: list[Tensor]) -> Any:
        graphs.append(graph)
        return torch._dynamo.lookup_backend("aot_eager")(graph, example)

    compiled = torch.compile(variant, backend=count, fullgraph=True)
    for length in (70, 133, 201):
        q, k, v = tensors(2, 2, length, length)
        real = torch.arange(length) < torch.tensor([[length], [length - 9]])
        mask = CAUSAL_WINDOW & Mask.padding(real)
        compare(compiled(q, k, v, mask), variant(q, k, v, mask), (q, k, v))
    assert 1 <= len(graphs) <= 2


def test_exports_with_any_length() -> None:
    variant = polyattn.create("local_window", left=6)
    q, k, v = (x.detach() for x in tensors(1, 2, 70, 70))
    length = torch.export.Dim("length", min=2, max=4096)
    shapes = [{2: length}] * 3
    program = torch.export.export(variant, (q, k, v), dynamic_shapes=tuple(shapes))
    longer = tuple(x.detach() for x in tensors(1, 2, 150, 150))
    torch.testing.assert_close(program.module()(*longer), variant(*longer), rtol=0, atol=1e-14)


def test_the_operator_is_well_formed() -> None:
    q, k, v = tensors(1, 2, 40, 40)
    slopes = torch.tensor([0.5, 0.25], dtype=torch.float64, requires_grad=True)
    real = torch.ones(1, 40, dtype=torch.bool)
    arguments = (q, k, v, 4, 1, 0.5, real, None, None, slopes)
    torch.library.opcheck(window_attention, arguments)


def test_memory_grows_with_the_output_alone() -> None:
    q = torch.randn(1, 4, 4096, 32)
    variant = polyattn.create("local_window", left=63)
    variant(q, q, q)
    assert q.nbytes <= peak_bytes(lambda: variant(q, q, q)) <= 2.5 * q.nbytes
