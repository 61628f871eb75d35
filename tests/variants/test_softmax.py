"""dense, sdpa, flash: one meaning. Compared with the definition, with each other, with PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch._dynamo.testing
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import polyattn
from polyattn import Call, Mask, Sizes
from polyattn.errors import Unsupported

MEMBERS = ("dense", "sdpa", "flash", "softmax")
B, H, L, S, D = 2, 4, 5, 7, 8


def attention(name: str, **options: float) -> polyattn.SequenceAttention:
    made = polyattn.create(name, **options)
    assert isinstance(made, polyattn.SequenceAttention)
    return made


def qkv(keys: int = S, kv_heads: int = H, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    sizes = ((B, H, L, D), (B, kv_heads, keys, D), (B, kv_heads, keys, D))
    return [
        torch.randn(size, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
        for size in sizes
    ]


def pattern() -> Tensor:
    keep = torch.rand(B, H, L, S, generator=torch.Generator().manual_seed(2)) > 0.4
    keep[1, 2, 3] = False
    return keep


MASKS: dict[str, Callable[[], Mask]] = {
    "full": Mask.full,
    "causal": Mask.causal,
    "prefix": lambda: Mask.causal(prefix=4),
    "window": lambda: Mask.window(1, 1),
    "causal window": lambda: Mask.causal() & Mask.window(2, None),
    "padding": lambda: Mask.lengths([7, 3]),
    "causal padding": lambda: Mask.causal() & Mask.lengths([7, 3]),
    "all padding": lambda: Mask.lengths([7, 0]),
    "segments": lambda: Mask.segments(torch.arange(S).expand(B, -1) // 3),
    "dense": lambda: Mask.dense(pattern()),
    "where": lambda: Mask.where(lambda b, h, i, j: (i + j + h) % 2 == 0),
    "alibi": lambda: Mask.alibi(polyattn.alibi_slopes(H)) & Mask.causal(),
    "bias": lambda: Mask.bias(torch.randn(H, L, S, dtype=torch.float64)[None]),
    "-inf": lambda: Mask.bias(torch.where(pattern(), 0.3, -torch.inf).double()),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", MEMBERS)
def test_output_and_gradients_are_the_definition(name: str, mask: str) -> None:
    x = qkv(kv_heads=2)
    variant, m = attention(name), MASKS[mask]()
    found, expected = variant(*x, m), attention("dense").expected(*x, m)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    seed = torch.randn(found.shape, dtype=torch.float64)
    gradients = (torch.autograd.grad(out, x, seed) for out in (found, expected))
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-11)


@pytest.mark.parametrize("name", MEMBERS)
def test_a_row_of_the_least_number_is_the_mean_not_a_mask(name: str) -> None:
    q, k, v = qkv()
    mask = Mask.bias(torch.full((L, S), torch.finfo(torch.float64).min, dtype=torch.float64))
    torch.testing.assert_close(attention(name)(q, k, v, mask), v.mean(2, True).expand_as(q))


def test_dense_has_the_gradients_of_that_mean_too() -> None:
    x = qkv()
    mask = Mask.bias(torch.full((L, S), torch.finfo(torch.float64).min, dtype=torch.float64))
    dense = attention("dense")
    found = torch.autograd.grad(dense(*x, mask).square().sum(), x)
    expected = torch.autograd.grad(dense.expected(*x, mask).square().sum(), x)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-11)


@pytest.mark.parametrize("name", MEMBERS)
def test_rows_that_a_mask_empties_are_zeros_with_zero_gradients(name: str) -> None:
    x = qkv()
    out = attention(name)(*x, Mask.dense(pattern()))
    assert not out[1, 2, 3].any()
    assert out[1, 2, 2].any()
    gradient_q, *_ = torch.autograd.grad(out.square().sum(), x)
    assert not gradient_q[1, 2, 3].any()
    assert torch.isfinite(gradient_q).all()


@pytest.mark.parametrize("name", MEMBERS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_large_logits_stay_in_range(name: str, dtype: torch.dtype) -> None:
    q = torch.full((1, 1, 3, 64), 80.0, dtype=dtype)
    v = torch.randn(1, 1, 3, 64).to(dtype)
    out = attention(name)(q, q, v)
    assert out.dtype == dtype
    mean = v.float().mean(2, keepdim=True).expand_as(v)
    torch.testing.assert_close(out.float(), mean, atol=2e-2, rtol=0)


def test_a_bias_learns() -> None:
    bias = torch.randn(L, S, dtype=torch.float64, requires_grad=True)
    x = [t.detach() for t in qkv()]
    found = []
    for name in ("dense", "sdpa", "softmax"):
        out = attention(name)(*x, Mask.bias(bias))
        found.append(torch.autograd.grad(out.square().sum(), bias)[0])
    torch.testing.assert_close(found[0], found[1])
    torch.testing.assert_close(found[0], found[2])
    assert found[0].abs().min() > 0
    with pytest.raises(Unsupported, match="requires grad"):
        attention("flash")(*x, Mask.bias(bias))


@pytest.mark.parametrize("name", MEMBERS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types_do_not_round_a_bias(name: str, dtype: torch.dtype) -> None:
    x = [t.detach() for t in qkv(dtype=dtype)]
    wide = [t.double() for t in x]
    bias = torch.randn(L, S, generator=torch.Generator().manual_seed(3)) + 300
    far = Mask.alibi(torch.full((H,), 0.9)) & Mask.lengths([3, 3], S)
    for mask in (Mask.bias(bias), far):
        found = attention(name)(*x, mask).double()
        expected = attention("dense").expected(*wide, mask)
        assert (found - expected).abs().max() < 0.03


@pytest.mark.parametrize("name", ["sdpa", "flash", "local_window", "linear"])
def test_forward_mode_is_right_or_refused(name: str) -> None:
    q, k, v = (t.detach() for t in qkv(keys=L))
    tangent = torch.randn(q.shape, dtype=q.dtype)
    _, right = torch.func.jvp(lambda a: attention("dense")(a, k, v), (q,), (tangent,))
    step = 1e-6
    ahead, behind = (attention("dense")(q + sign * step * tangent, k, v) for sign in (1, -1))
    torch.testing.assert_close(right, (ahead - behind) / (2 * step), rtol=1e-4, atol=1e-6)
    attention(name)(q, k, v)
    with pytest.raises(Unsupported, match="forward_ad"):
        torch.func.jvp(lambda a: attention(name)(a, k, v), (q,), (tangent,))


def test_slopes_learn() -> None:
    x = [t.detach() for t in qkv(keys=L)]
    slopes = polyattn.alibi_slopes(H).double().requires_grad_()
    mask = Mask.alibi(slopes) & Mask.causal()
    found = [
        torch.autograd.grad(attention(name)(*x, mask).square().sum(), slopes)[0]
        for name in ("dense", "sdpa", "softmax")
    ]
    torch.testing.assert_close(found[0], found[1])
    torch.testing.assert_close(found[0], found[2])
    with pytest.raises(Unsupported, match="requires grad"):
        attention("flash")(*x, mask)
    with torch.no_grad():
        attention("flash")(*x, mask)


def test_flash_refuses_what_its_kernel_cannot_do() -> None:
    q, k, v = qkv()
    with pytest.raises(Unsupported, match="value_dim"):
        attention("flash")(q, k, v[..., :3])
    with pytest.raises(Unsupported, match="dropout"):
        attention("flash", dropout=0.1)
    cuda = Call(device="cuda", dtype=torch.float16, sizes=Sizes(8, 64))
    flash = attention("flash")
    assert flash.refusals(cuda) == ()
    padded = Call(device="cuda", dtype=torch.float16, parts=frozenset({"padding"}))
    assert [r.option for r in flash.refusals(padded)] == ["mask"]
    for width in (512, 20):
        wrong = Call(device="cuda", dtype=torch.float16, sizes=Sizes(8, width))
        assert [r.option for r in flash.refusals(wrong)] == ["head_dim"]


def test_flash_runs_the_flash_operator() -> None:
    q, k, v = (t.detach() for t in qkv())
    with torch.profiler.profile() as profile:
        attention("flash")(q, k, v, Mask.causal())
    ran = {event.key for event in profile.key_averages()}
    assert "aten::_scaled_dot_product_flash_attention_for_cpu" in ran


@pytest.mark.parametrize("name", MEMBERS)
def test_pytorch_agrees(name: str) -> None:
    q, k, v = qkv(keys=L)
    expected = scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.7)
    found = attention(name, scale=0.7)(q, k, v, Mask.causal())
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", ["dense", "sdpa"])
def test_dropout_drops_in_training_only_and_keeps_the_mean(name: str) -> None:
    x = [t.detach() for t in qkv()]
    variant = attention(name, dropout=0.3)
    torch.manual_seed(0)
    draws = torch.stack([variant(*x) for _ in range(2000)])
    assert (draws[0] - draws[1]).abs().max() > 0
    variant.eval()
    quiet = variant(*x)
    torch.testing.assert_close(quiet, attention(name)(*x))
    error = (draws.mean(0) - quiet).abs() / (draws.std(0) / 2000**0.5)
    assert error.max() < 5


@pytest.mark.parametrize("name", MEMBERS)
def test_compiles_whole_into_few_graphs(name: str) -> None:
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    variant = attention(name)
    compiled = torch.compile(variant, backend=counter, fullgraph=True)
    for n in (33, 47, 80):
        q = torch.randn(2, 4, n, 8)
        torch.testing.assert_close(
            compiled(q, q, q, Mask.causal()), variant(q, q, q, Mask.causal())
        )
    assert counter.frame_count <= 2


@pytest.mark.parametrize("name", MEMBERS)
def test_strides_are_no_reason_to_refuse(name: str) -> None:
    q, k, v = (t.detach() for t in qkv())
    strange = [t.mT.contiguous().mT for t in (q, k, v)]
    torch.testing.assert_close(attention(name)(*strange), attention(name)(q, k, v))
