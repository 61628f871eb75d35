"""What training, copying and compiling ask of a model."""

import copy
import pickle

import pytest
import torch

import polyattn
from polyattn import Mask

POSITIONS = ["none", "sinusoidal", "learned", "rope", "alibi"]


def built(**changes):
    torch.manual_seed(0)
    config = {
        "model": "causal_lm",
        "vocab_size": 11,
        "d_model": 16,
        "layers": 2,
        "heads": 4,
        "kv_heads": 2,
        "attention": "softmax",
        "max_length": 12,
    }
    return polyattn.build({**config, **changes})


IDS = torch.randint(0, 11, (2, 12), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("place", ["pre", "post"])
@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("feed_forward", ["relu", "swiglu"])
def test_every_parameter_gets_a_finite_gradient(position, place, feed_forward):
    model = built(
        position=position,
        norm={"kind": "layernorm", "place": place},
        feed_forward=feed_forward,
        query_key_norm="layernorm",
    )
    model(IDS).logsumexp(-1).sum().backward()
    bad = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
    assert bad == []


def test_a_padded_token_gives_no_gradient():
    model = built(model="encoder", vocab_size=None, position="rope")
    x = torch.randn(2, 5, 16, requires_grad=True)
    real = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]], dtype=torch.bool)
    model(x, Mask.padding(real))[real].square().sum().backward()
    assert (x.grad[~real] == 0).all()
    assert (x.grad[real] != 0).any(-1).all()


@pytest.mark.parametrize("attention", ["softmax", "linear"])
def test_it_learns(attention):
    model = built(attention=attention, position="rope")
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(60):
        logits = model(IDS[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), IDS[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]


@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
@pytest.mark.parametrize("place", ["pre", "post"])
def test_norms_stand_where_they_are_asked_to(norm, place):
    model = built(model="encoder", norm={"kind": norm, "place": place})
    out = model(IDS)
    assert out.square().mean(-1).allclose(torch.ones(2, 12), atol=1e-2)
    model.blocks[-1].feed_forward_residual.norm.weight.data.zero_()
    last = model.blocks[-1]
    entered = last.feed_forward_residual.enter(torch.randn(2, 16))
    assert (entered == 0).all() == (place == "pre")


def test_dropout_is_on_in_training_and_off_in_evaluation():
    model = built(dropout=0.5)
    assert not torch.equal(model(IDS), model(IDS))
    model.eval()
    assert torch.equal(model(IDS), model(IDS))


def test_copies_after_a_call_are_equal_and_apart():
    model = built(position="alibi")
    before = model(IDS)
    twin = copy.deepcopy(model)
    assert torch.equal(twin(IDS), before)
    assert torch.equal(pickle.loads(pickle.dumps(model))(IDS), before)
    torch.nn.init.zeros_(twin.head.weight)
    assert torch.equal(model(IDS), before)


def test_inference_mode_leaves_nothing_behind():
    model = built(position="rope")
    with torch.inference_mode():
        model(IDS)
    model(IDS).sum().backward()


def test_half_precision_keeps_positions_apart():
    model = built(position="rope", max_length=None).to(torch.bfloat16)
    ids = torch.zeros(1, 4, dtype=torch.long)
    assert model(ids).dtype == torch.bfloat16
    x = torch.ones(1, 2, 16, dtype=torch.bfloat16)
    mixer = model.blocks[0].mixer
    near, _ = mixer(x, positions=torch.tensor([300, 301]))
    assert near.isfinite().all()


@pytest.mark.parametrize(
    ("attention", "position"),
    [("softmax", "alibi"), ("softmax", "learned"), ("linear", "rope")],
)
def test_it_compiles_without_a_break(attention, position):
    model = built(attention=attention, position=position)
    mask = Mask.padding(torch.ones(2, 12, dtype=torch.bool).tril(9))
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(IDS, mask), model(IDS, mask))
    compiled(IDS, mask).sum().backward()


@torch.no_grad()
def test_a_step_compiles_without_a_break():
    model = built(position="rope")
    torch._dynamo.reset()
    compiled = torch.compile(model.extend, fullgraph=True, backend="aot_eager")
    state = model.new_state(2)
    _, state = model.extend(IDS[:, :6], state)
    expected, _ = model.extend(IDS[:, 6:7], state)
    torch.testing.assert_close(compiled(IDS[:, 6:7], state)[0], expected)
