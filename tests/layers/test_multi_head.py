"""Multi-head attention: the same numbers as torch's, and what torch's has not."""

import copy

import pytest
import torch
from torch import nn

import polyattn
from polyattn import Mask, MultiHeadAttention, Sizes, Unsupported
from polyattn.errors import ConfigError, MaskError, ShapeError
from polyattn.layers.norms import NORMS
from polyattn.layers.positions import Alibi, Rotary

F64 = torch.float64


def pair(bias: bool = True, attention: str = "softmax") -> tuple[nn.Module, MultiHeadAttention]:
    """torch's module with random biases, and ours with its weights."""
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(12, 3, bias=bias, batch_first=True, dtype=F64)
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.4)
    ours = MultiHeadAttention(12, 3, attention, bias=bias).double()
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


CLOSED = torch.rand(5, 5, generator=torch.Generator().manual_seed(1)) < 0.4
CLOSED.fill_diagonal_(False)
PADDED = torch.tensor([[0, 0, 0, 1, 1], [1, 0, 0, 0, 0]], dtype=torch.bool)
ADDED = torch.randn(5, 5, dtype=F64, generator=torch.Generator().manual_seed(2))
CAUSAL = torch.ones(5, 5, dtype=torch.bool).triu(1)
MAPPED = {
    "full": ({}, None),
    "causal": ({"attn_mask": CAUSAL, "is_causal": True}, Mask.causal()),
    "closed": ({"attn_mask": CLOSED}, Mask.dense(~CLOSED)),
    "added": ({"attn_mask": ADDED}, Mask.bias(ADDED)),
    "padded": ({"key_padding_mask": PADDED}, Mask.padding(~PADDED)),
    "closed-padded": (
        {"attn_mask": CLOSED.double() * -1e30, "key_padding_mask": PADDED.double() * -1e30},
        Mask.dense(~CLOSED) & Mask.padding(~PADDED),
    ),
}


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "plain"])
@pytest.mark.parametrize("mask", MAPPED)
def test_equals_torch_with_its_weights(mask, bias, training):
    theirs, ours = (module.train(training) for module in pair(bias))
    options, mapped = MAPPED[mask]
    x = torch.randn(2, 5, 12, dtype=F64)
    xs = [x.clone().requires_grad_() for _ in range(2)]
    expected, _ = theirs(xs[0], xs[0], xs[0], need_weights=False, **options)
    out, state = ours(xs[1], mask=mapped)
    assert state is None
    torch.testing.assert_close(out, expected, atol=1e-12, rtol=0)
    upstream = torch.randn_like(out)
    out.backward(upstream)
    expected.backward(upstream)
    torch.testing.assert_close(xs[1].grad, xs[0].grad, atol=1e-11, rtol=0)
    for name, parameter in theirs.named_parameters():
        torch.testing.assert_close(ours.get_parameter(name).grad, parameter.grad)


def test_cross_attention_equals_torch_and_its_memory_is_projected_once():
    theirs, ours = pair()
    x, context = torch.randn(2, 5, 12, dtype=F64), torch.randn(2, 7, 12, dtype=F64)
    hidden = torch.zeros(2, 7, dtype=torch.bool)
    hidden[0, 4:] = True
    expected, _ = theirs(x, context, context, key_padding_mask=hidden, need_weights=False)
    padding = Mask.padding(~hidden)
    torch.testing.assert_close(ours(x, context, padding)[0], expected, atol=1e-12, rtol=0)
    memory = ours.remember(context, padding)
    torch.testing.assert_close(ours(x, memory)[0], expected, atol=1e-12, rtol=0)
    step = torch.cat([ours(x[:, i : i + 1], memory)[0] for i in range(5)], 1)
    torch.testing.assert_close(step, expected, atol=1e-12, rtol=0)
    swapped = ours(x[[1, 0]], memory.reorder(torch.tensor([1, 0])))[0]
    torch.testing.assert_close(swapped, expected[[1, 0]], atol=1e-12, rtol=0)
    assert memory.nbytes == 2 * 2 * 7 * 12 * 8 + 2 * 7  # keys and values, and the padding


def test_memory_holds_padding_and_nothing_else():
    _, ours = pair()
    with pytest.raises(MaskError, match=r"padding alone, got \['causal'\]"):
        ours.remember(torch.randn(2, 5, 12, dtype=F64), Mask.causal())


@pytest.mark.parametrize(
    ("mask", "part"),
    [
        (Mask.causal(), "causal"),
        (Mask.window(2, 2), "window"),
        (Mask.alibi(torch.ones(3)), "alibi"),
        (Mask.causal() & Mask.padding(torch.ones(2, 5, dtype=torch.bool)), "causal"),
    ],
)
def test_order_has_no_meaning_across_sequences(mask, part):
    _, ours = pair()
    x = torch.randn(2, 5, 12, dtype=F64)
    with pytest.raises(Unsupported, match=f"mask = {part} across sequences"):
        ours(x, x.clone(), mask)


def test_segments_across_sequences_want_two_sets_of_ids():
    _, ours = pair()
    x, context = torch.randn(2, 3, 12, dtype=F64), torch.randn(2, 5, 12, dtype=F64)
    keys, queries = torch.tensor([[0, 0, 1, 1, 1]] * 2), torch.tensor([[0, 1, 1]] * 2)
    for one in (Mask.segments(keys), Mask.documents([2, 3])):
        with pytest.raises(
            Unsupported, match=r"one set of ids .*Mask\.segments\(query_ids, key_ids\)"
        ):
            ours(x, context, one)
    two = Mask.segments(queries, keys)
    for _ in range(2):  # what was refused once is remembered apart from what is answered
        out = ours(x, context, two)[0]
        torch.testing.assert_close(out[:, :1], ours(x[:, :1], context[:, :2])[0])
        torch.testing.assert_close(out[:, 1:], ours(x[:, 1:], context[:, 2:])[0])
        with pytest.raises(Unsupported, match="one set of ids"):
            ours(x, context, Mask.segments(keys))


def test_a_part_that_the_variant_does_not_take_is_refused_across_sequences_too():
    ours = MultiHeadAttention(12, 3, "linear")
    x = torch.randn(2, 5, 12)
    with pytest.raises(Unsupported, match="mask = bias"):
        ours(x, x.clone(), Mask.bias(torch.zeros(5, 5)))


def test_positions_and_states_have_no_meaning_across_sequences():
    ours = MultiHeadAttention(12, 3, "softmax", position=Rotary(4))
    x = torch.randn(2, 5, 12)
    with pytest.raises(Unsupported, match="without a position part"):
        ours(x, x.clone())
    _, plain = pair()
    with pytest.raises(Unsupported, match=r"Memory.*no state"):
        plain(x.double(), x.double(), None, None, plain.new_state(2))


def test_grouped_heads_equal_repeated_ones():
    torch.manual_seed(0)
    grouped = MultiHeadAttention(16, 4, "softmax", kv_heads=2).double()
    whole = MultiHeadAttention(16, 4, "softmax").double()
    weights = grouped.state_dict()
    for name in ("in_proj_weight", "in_proj_bias"):
        q, k, v = weights[name].split([16, 8, 8])
        repeated = [
            part.unflatten(0, (2, 4)).repeat_interleave(2, 0).flatten(0, 1) for part in (k, v)
        ]
        weights[name] = torch.cat([q, *repeated])
    whole.load_state_dict(weights)
    x = torch.randn(2, 6, 16, dtype=F64)
    torch.testing.assert_close(grouped(x)[0], whole(x)[0], atol=1e-12, rtol=0)


def test_heads_are_normalised_before_they_are_turned():
    torch.manual_seed(0)
    layer = MultiHeadAttention(
        8, 2, "dense", kv_heads=1, position=Rotary(4), head_norm=NORMS["rmsnorm"]
    ).double()
    nn.init.normal_(layer.query_norm.weight)
    nn.init.normal_(layer.key_norm.weight)
    x = torch.randn(1, 5, 8, dtype=F64)
    projected = x @ layer.in_proj_weight.T + layer.in_proj_bias
    q = projected[..., :8].view(1, 5, 2, 4).transpose(1, 2)
    k = projected[..., 8:12].view(1, 5, 1, 4).transpose(1, 2)
    v = projected[..., 12:].view(1, 5, 1, 4).transpose(1, 2)
    q, k = Rotary(4).turn(layer.query_norm(q), layer.key_norm(k), torch.arange(5))
    odds = torch.softmax(q @ k.mT / 2, -1)
    expected = layer.out_proj((odds @ v).transpose(1, 2).reshape(1, 5, 8))
    torch.testing.assert_close(layer(x)[0], expected, atol=1e-12, rtol=0)


def test_head_norms_work_under_autocast():
    layer = MultiHeadAttention(8, 2, "softmax", head_norm=NORMS["layernorm"], position=Rotary(4))
    with torch.autocast("cpu", torch.bfloat16):
        out, _ = layer(torch.randn(2, 3, 8))
        memory_out, _ = MultiHeadAttention(8, 2, "softmax", head_norm=NORMS["rmsnorm"])(
            torch.randn(2, 3, 8), torch.randn(2, 4, 8)
        )
    assert out.dtype == memory_out.dtype == torch.bfloat16


@pytest.mark.parametrize("part", ["rope", "alibi", "none"])
@pytest.mark.parametrize("cuts", [(1,) * 6, (4, 2), (0, 3, 3), (6,)], ids=str)
def test_extending_equals_the_whole(part, cuts):
    torch.manual_seed(0)
    position = {"rope": Rotary(4), "alibi": Alibi(3), "none": None}[part]
    layer = MultiHeadAttention(12, 3, "softmax", position=position).double()
    x = torch.randn(2, 6, 12, dtype=F64)
    real = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]], dtype=torch.bool)
    whole, _ = layer(x, mask=Mask.causal() & Mask.padding(real))
    state, outs, start = layer.new_state(2), [], 0
    for length in cuts:
        chunk = slice(start, start + length)
        out, state = layer(x[:, chunk], mask=Mask.padding(real[:, chunk]), state=state)
        outs.append(out)
        start += length
    assert state.length == 6
    torch.testing.assert_close(torch.cat(outs, 1)[real], whole[real], atol=1e-12, rtol=0)


def test_given_positions_replace_the_count():
    torch.manual_seed(0)
    layer = MultiHeadAttention(12, 3, "softmax", position=Rotary(4)).double()
    x = torch.randn(2, 4, 12, dtype=F64)
    counted, _ = layer(x)
    torch.testing.assert_close(layer(x, positions=torch.arange(4))[0], counted)
    torch.testing.assert_close(layer(x, positions=torch.arange(4) + 9)[0], counted)
    assert not torch.allclose(layer(x, positions=torch.arange(4) * 2)[0], counted)
    with pytest.raises(ShapeError, match=r"\(B, L\) = \(2, 4\), got \(3,\)"):
        layer(x, positions=torch.arange(3))
    state = layer.new_state(2)
    _, state = layer(x, positions=torch.arange(4), state=state)
    with pytest.raises(ShapeError, match="first 4 tokens of this state, got none"):
        layer(x, state=state)


def test_side_inputs_have_a_projection_each_beside_the_merged_one():
    torch.manual_seed(0)
    layer = MultiHeadAttention(12, 3, "gated_linear").double()
    sides = dict(layer.attention.side_inputs)
    assert set(layer.side) == set(sides)
    assert sides
    plain = MultiHeadAttention(12, 3, "softmax")
    assert set(plain.state_dict()) < set(layer.state_dict())
    x = torch.randn(2, 6, 12, dtype=F64)
    whole, _ = layer(x, mask=Mask.causal())
    whole.sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in layer.parameters())
    state = layer.new_state(2)
    steps = []
    for i in range(6):
        out, state = layer(x[:, i : i + 1], state=state)
        steps.append(out)
    torch.testing.assert_close(torch.cat(steps, 1), whole, atol=1e-10, rtol=0)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("cross", [True, False])
def test_every_parameter_gets_a_gradient(bias, cross):
    layer = MultiHeadAttention(
        12, 3, "softmax", kv_heads=1, head_norm=NORMS["layernorm"], bias=bias
    )
    x = torch.randn(2, 5, 12)
    layer(x, torch.randn(2, 4, 12) if cross else None)[0].square().sum().backward()
    missing = [n for n, p in layer.named_parameters() if p.grad is None]
    assert missing == []


def test_a_built_variant_is_taken_if_its_sizes_fit():
    built = polyattn.create("linformer", Sizes(3, 4, max_length=8), rank=2)
    assert MultiHeadAttention(12, 3, built)(torch.randn(2, 8, 12))[0].shape == (2, 8, 12)
    with pytest.raises(ConfigError, match=r"built for Sizes\(heads=2.*got one for"):
        MultiHeadAttention(12, 2, built)
    with pytest.raises(ConfigError, match="se is a feature map"):
        MultiHeadAttention(12, 3, "se")


def test_dropout_belongs_to_the_variant_and_rests_in_eval():
    layer = MultiHeadAttention(12, 3, polyattn.create("softmax", dropout=0.5))
    x = torch.randn(2, 5, 12)
    assert not torch.equal(layer(x)[0], layer(x)[0])
    layer.eval()
    assert torch.equal(layer(x)[0], layer(x)[0])


def test_copies_after_a_call_are_equal():
    _, layer = pair()
    x = torch.randn(2, 5, 12, dtype=F64)
    out, _ = layer(x)
    assert torch.equal(copy.deepcopy(layer)(x)[0], out)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((12, 5), r"heads = 5: expected a divisor of d_model = 12"),
        ((12, 0), r"heads = 0: expected a divisor"),
        ((12, 3, 2), r"kv_heads = 2: expected a divisor of heads = 3"),
    ],
)
def test_sizes_that_do_not_divide_are_refused(sizes, message):
    d_model, heads, *kv_heads = sizes
    with pytest.raises(ConfigError, match=message):
        MultiHeadAttention(d_model, heads, "softmax", kv_heads=kv_heads[0] if kv_heads else None)


def test_wrong_inputs_are_named():
    _, layer = pair()
    with pytest.raises(ShapeError, match=r"d_model = 12\), got \(2, 5, 11\)"):
        layer(torch.randn(2, 5, 11, dtype=F64))
    x = torch.randn(2, 5, 12, dtype=F64)
    with pytest.raises(MaskError, match=r"Mask\.padding"):
        layer(x, mask=PADDED)
    layer(x, mask=Mask.padding(~PADDED))
    with pytest.raises(MaskError):
        layer(x, mask=Mask.padding(torch.ones(2, 6, dtype=torch.bool)))
    with pytest.raises(ConfigError, match="this layer's new_state"):
        layer(x, state=polyattn.KeyValueState())


@pytest.mark.parametrize("shape", [(0, 5), (2, 0)])
def test_nothing_in_gives_nothing_out(shape):
    layer = MultiHeadAttention(12, 3, "softmax", position=Rotary(4))
    assert layer(torch.randn(*shape, 12))[0].shape == (*shape, 12)
