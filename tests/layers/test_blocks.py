"""Blocks do not know what mixes their tokens; decoder blocks look at a memory."""

import pytest
import torch
from torch import Tensor, nn

from polyattn import Mask, MultiHeadAttention, RecurrentState, Unsupported
from polyattn.errors import ConfigError
from polyattn.layers.blocks import Block, PreNorm
from polyattn.layers.feed_forward import FEED_FORWARDS, FeedForward, GatedFeedForward
from polyattn.layers.positions import Rotary
from polyattn.models.causal_lm import CausalLM
from polyattn.models.encoder import Encoder
from polyattn.models.stack import TokenEmbedding

F64 = torch.float64


class RunningMean(nn.Module):
    """A mixer that is no attention: the mean of the tokens so far, through one matrix."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mix = nn.Linear(width, width)

    def forward(self, x, context=None, mask=None, positions=None, state=None):
        seen, total = (0, 0.0) if state is None else (state.length, state.tensors["total"])
        sums = x.cumsum(1) + total
        counts = torch.arange(1, x.shape[1] + 1, dtype=x.dtype)[:, None] + seen
        out = self.mix(sums / counts)
        if state is None:
            return out, None
        return out, state.advance(x.shape[1], {"total": sums[:, -1:]})

    def new_state(self, batch, *, dtype=None, device=None):
        width = self.mix.in_features
        total = torch.zeros(batch, 1, width, dtype=F64)
        return RecurrentState(0, {"total": total})


def block(mixer=None, cross=None, width=12):
    return Block(
        mixer or MultiHeadAttention(width, 3, "softmax", position=Rotary(4)),
        FeedForward(width, 24),
        lambda: PreNorm(nn.LayerNorm(width)),
        cross=cross,
    ).double()


def test_any_mixer_makes_a_model_that_trains_and_decodes():
    torch.manual_seed(0)
    blocks = [block(RunningMean(12)), block()]
    model = CausalLM(TokenEmbedding(7, 12), blocks, nn.LayerNorm(12), vocab_size=7).double()
    ids = torch.randint(0, 7, (2, 6))
    whole = model(ids)
    whole.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    state, outs = model.new_state(2), []
    for chunk in ids.split([1, 3, 2], 1):
        out, state = model.extend(chunk, state)
        outs.append(out)
    torch.testing.assert_close(torch.cat(outs, 1), whole, atol=1e-12, rtol=0)


def test_a_decoder_block_steps_beside_a_memory_that_never_grows():
    torch.manual_seed(0)
    layer = block(cross=MultiHeadAttention(12, 3, "softmax", kv_heads=1))
    x, context = torch.randn(2, 5, 12, dtype=F64), torch.randn(2, 7, 12, dtype=F64)
    real = torch.tensor([[1] * 4 + [0] * 3, [1] * 7], dtype=torch.bool)
    memory = layer.cross.remember(context, Mask.padding(real))
    whole, _ = layer(x, memory, Mask.causal())
    alone, _ = layer(x[:1], context[:1, :4], Mask.causal())
    torch.testing.assert_close(whole[:1], alone, atol=1e-12, rtol=0)
    state, outs, size = layer.new_state(2), [], memory.nbytes
    for chunk in x.split([2, 1, 2], 1):
        out, state = layer(chunk, memory, state=state)
        outs.append(out)
    assert memory.nbytes == size
    torch.testing.assert_close(torch.cat(outs, 1), whole, atol=1e-12, rtol=0)
    whole.sum().backward()
    assert all(parameter.grad is not None for parameter in layer.parameters())


def test_a_context_is_wanted_by_who_has_a_cross_mixer_and_by_nobody_else():
    x = torch.randn(2, 5, 12, dtype=F64)
    with pytest.raises(ConfigError, match=r"expected no context.*cross="):
        block()(x, x)
    with pytest.raises(ConfigError, match="expected a context"):
        block(cross=MultiHeadAttention(12, 3, "softmax"))(x)


@pytest.mark.parametrize("attention", ["local_window", "gated_linear"])
def test_what_lives_by_distance_or_order_does_not_look_across(attention):
    layer = MultiHeadAttention(12, 3, attention)
    x = torch.randn(2, 5, 12)
    with pytest.raises(Unsupported):
        layer(x, x.clone())


def test_an_encoder_composed_by_hand_runs():
    encoder = Encoder(TokenEmbedding(None, 12), [block()]).double()
    assert encoder(torch.randn(2, 5, 12, dtype=F64)).shape == (2, 5, 12)


def test_feed_forwards_are_their_formulas():
    torch.manual_seed(0)
    x = torch.randn(3, 6, dtype=F64)
    for kind, activation in (("relu", torch.relu), ("gelu", nn.functional.gelu)):
        plain = FEED_FORWARDS[kind](6, 10, 0.0).double()
        hidden = activation(x @ plain.up.weight.T + plain.up.bias)
        torch.testing.assert_close(plain(x), hidden @ plain.down.weight.T + plain.down.bias)
    gated = FEED_FORWARDS["swiglu"](6, 10, 0.0).double()
    assert isinstance(gated, GatedFeedForward)
    gate, up = (x @ gated.gate_up.weight.T + gated.gate_up.bias).split(10, -1)
    hidden = gate * torch.sigmoid(gate) * up
    torch.testing.assert_close(gated(x), hidden @ gated.down.weight.T + gated.down.bias)


def test_feed_forwards_drop_hidden_units_in_training_only():
    x: Tensor = torch.randn(3, 6)
    for kind in FEED_FORWARDS:
        layer = FEED_FORWARDS[kind](6, 10, 0.5)
        assert not torch.equal(layer(x), layer(x))
        layer.eval()
        assert torch.equal(layer(x), layer(x))
