"""Decoding states are values: extended twice, reordered, kept, and never changed."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

import polyattn
from polyattn import KeyValueState, Mask, RecurrentState
from polyattn.errors import ConfigError, MaskError, ShapeError, Unsupported

TOKENS = 12


def attention(name: str = "dense") -> polyattn.SequenceAttention:
    made = polyattn.create(name)
    assert isinstance(made, polyattn.SequenceAttention)
    return made


def sequence(seed: int = 0, tokens: int = TOKENS, kv_heads: int = 2) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    heads = (4, kv_heads, kv_heads)
    return tuple(
        torch.randn(2, h, tokens, 8, generator=generator, dtype=torch.float64) for h in heads
    )


def cut(x: tuple[Tensor, ...], start: int, stop: int) -> tuple[Tensor, ...]:
    return tuple(t[:, :, start:stop] for t in x)


def decode(
    variant: polyattn.SequenceAttention, x: tuple[Tensor, ...], cuts: list[int], masks=None
) -> Tensor:
    state = variant.new_state(2, dtype=torch.float64)
    outs, start = [], 0
    for n, tokens in enumerate(cuts):
        mask = masks[n] if masks else None
        out, state = variant.extend(*cut(x, start, start + tokens), state, mask)
        start += tokens
        assert state.length == start
        outs.append(out)
    return torch.cat(outs, dim=2)


@pytest.mark.parametrize("cuts", [[1] * 12, [5, 1, 1, 5], [12], [3, 0, 9]])
@pytest.mark.parametrize("grad", [False, True])
def test_any_cutting_gives_what_one_call_gives(cuts: list[int], grad: bool) -> None:
    x = tuple(t.requires_grad_(grad) for t in sequence())
    with torch.set_grad_enabled(grad):
        found = decode(attention(), x, cuts)
        expected = attention()(*x, Mask.causal())
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    if grad:
        seed = torch.randn(found.shape, dtype=torch.float64)
        for a, b in zip(
            torch.autograd.grad(found, x, seed), torch.autograd.grad(expected, x, seed), strict=True
        ):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-11)


def test_the_same_state_extends_twice_and_stays_as_it_was() -> None:
    variant, x = attention(), sequence()
    with torch.no_grad():
        _, state = variant.extend(*cut(x, 0, 5), variant.new_state(2, dtype=torch.float64))
        first, one = variant.extend(*cut(x, 5, 6), state)
        other, two = variant.extend(*cut(sequence(1), 5, 6), state)
        again, _ = variant.extend(*cut(x, 5, 6), state)
        assert torch.equal(first, again)
        assert not torch.equal(first, other)
        assert (state.length, one.length, two.length) == (5, 6, 6)
        # Both branches go on, each from its own past.
        later, _ = variant.extend(*cut(x, 6, 7), one)
        torch.testing.assert_close(later, variant(*cut(x, 0, 7), Mask.causal())[:, :, 6:])


def test_a_copied_state_is_independent() -> None:
    variant, x = attention(), sequence()
    with torch.no_grad():
        _, state = variant.extend(*cut(x, 0, 5), variant.new_state(2, dtype=torch.float64))
        copied = copy.deepcopy(state)
        variant.extend(*cut(sequence(1), 5, 9), state)
        out, _ = variant.extend(*cut(x, 5, 6), copied)
        torch.testing.assert_close(out, variant(*cut(x, 0, 6), Mask.causal())[:, :, 5:])


def test_reorder_follows_the_samples() -> None:
    variant, x = attention(), sequence()
    swapped = tuple(t[[1, 1]] for t in x)
    keep = torch.ones(2, TOKENS, dtype=torch.bool)
    keep[0, :3] = False
    with torch.no_grad():
        past = Mask.padding(keep[:, :6])
        _, state = variant.extend(*cut(x, 0, 6), variant.new_state(2, dtype=torch.float64), past)
        out, _ = variant.extend(*cut(swapped, 6, 7), state.reorder(torch.tensor([1, 1])))
        torch.testing.assert_close(out, variant(*cut(swapped, 0, 7), Mask.causal())[:, :, 6:])


def test_the_buffer_is_shared_and_grows_by_doubling() -> None:
    variant, x = attention(), sequence(tokens=64)
    sizes = []
    with torch.no_grad():
        state = variant.new_state(2, dtype=torch.float64)
        for t in range(64):
            _, state = variant.extend(*cut(x, t, t + 1), state)
            sizes.append(state.nbytes)
    assert len(set(sizes)) <= 4
    assert sizes[-1] <= 2 * 2 * x[1].nbytes


def test_a_reach_forgets_and_holds_at_most_twice_itself() -> None:
    x = sequence(tokens=50)
    per_key = 2 * 2 * 2 * 8 * 8
    for cuts in ([1] * 50, [30, 1, 1, 18], [50]):
        state, start = KeyValueState(reach=5), 0
        for tokens in cuts:
            _, k, v = cut(x, start, start + tokens)
            held, mask, state = state.append({"k": k, "v": v}, Mask.full(), k)
            start += tokens
            seen = held["k"].shape[2]
            assert torch.equal(held["k"], x[1][:, :, start - seen : start])
            assert seen >= min(start, tokens + 5)
            assert state.held == min(start, 5)
            assert state.nbytes <= 2 * 5 * per_key
            assert mask.prefix == 0


def test_padding_is_remembered() -> None:
    x = sequence()
    keep = torch.ones(2, TOKENS, dtype=torch.bool)
    keep[0, :4] = False
    masks = [Mask.padding(keep[:, :4]), None, Mask.padding(keep[:, 8:])]
    found = decode(attention(), x, [4, 4, 4], masks)
    expected = attention()(*x, Mask.causal() & Mask.padding(keep))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_segments_are_remembered_and_must_come_with_every_chunk() -> None:
    x, ids = sequence(), torch.tensor([[0] * 5 + [1] * 7, [0] * 9 + [1] * 3])
    masks = [Mask.segments(ids[:, :6]), Mask.segments(ids[:, 6:])]
    found = decode(attention(), x, [6, 6], masks)
    expected = attention()(*x, Mask.causal() & Mask.segments(ids))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    with pytest.raises(MaskError, match="new tokens have none"):
        decode(attention(), x, [6, 6], [masks[0], None])


@pytest.mark.parametrize(
    "mask",
    [
        Mask.dense(torch.ones(6, 6, dtype=torch.bool)),
        Mask.bias(torch.zeros(6, 6)),
        Mask.causal(prefix=2),
        Mask.segments(torch.zeros(2, 6, dtype=torch.long), torch.zeros(2, 6, dtype=torch.long)),
    ],
    ids=["dense", "bias", "prefix", "two sets of ids"],
)
def test_what_a_mask_of_new_tokens_cannot_say_is_refused(mask: Mask) -> None:
    with pytest.raises(Unsupported, match="while decoding"):
        decode(attention(), sequence(), [6, 6], [mask, mask])


def test_chunks_that_do_not_fit_the_state_are_refused() -> None:
    variant, x = attention(), sequence()
    _, state = variant.extend(*cut(x, 0, 5), variant.new_state(2, dtype=torch.float64))
    with pytest.raises(ShapeError, match=r"the state (holds|was made for)"):
        variant.extend(*(t[:1] for t in cut(x, 5, 6)), state)
    with pytest.raises(ShapeError, match=r"the state (holds|was made for)"):
        variant.extend(*(t.float() for t in cut(x, 5, 6)), state)
    with pytest.raises(ShapeError, match="as many new keys"):
        variant.extend(x[0][:, :, :1], x[1], x[2], state)


def test_a_variant_without_a_state_says_so_at_once() -> None:
    se = polyattn.create("linformer", polyattn.Sizes(2, 4, max_length=8))
    assert isinstance(se, polyattn.SequenceAttention)
    with pytest.raises(Unsupported, match="decoding"):
        se.new_state(2)


@pytest.mark.parametrize("name", ["dense", "local_window", "linear", "gated_linear"])
def test_a_state_answers_only_tokens_like_those_before(name: str) -> None:
    made = polyattn.create(name)
    assert isinstance(made, polyattn.SequenceAttention)
    x = sequence(kv_heads=4)
    inputs = {"gate": x[1][:, :, :2]} if made.side_inputs else {}
    sizes = polyattn.Sizes(4, 8)
    state = made.new_state(2, sizes, dtype=torch.float64)
    _, state = made.extend(*cut(x, 0, 2), state, None, inputs)
    wrong = {
        "batch": tuple(t[:1, :, :1] for t in x),
        "dtype": tuple(t[:, :, :1].float() for t in x),
        "heads": tuple(t[:, :2, :1] for t in x),
    }
    for q, k, v in wrong.values():
        sides = {"gate": k} if made.side_inputs else {}
        with pytest.raises(ShapeError, match="the state"):
            made.extend(q, k, v, state, None, sides)
    for other in (
        None,
        KeyValueState() if "linear" in name else RecurrentState(0, {}),
    ):
        sides = {"gate": x[1][:, :, :1]} if made.side_inputs else {}
        with pytest.raises(ConfigError, match="new_state"):
            made.extend(*cut(x, 2, 3), other, None, sides)  # type: ignore[arg-type]


def test_a_state_belongs_to_one_variant_and_config() -> None:
    x = sequence(kv_heads=4)

    def made(name: str, **options: int) -> polyattn.SequenceAttention:
        built = polyattn.create(name, **options)
        assert isinstance(built, polyattn.SequenceAttention)
        return built

    def started(variant: polyattn.SequenceAttention) -> polyattn.State:
        state = variant.new_state(2, polyattn.Sizes(4, 8), dtype=torch.float64)
        inputs = {"gate": x[1][:, :, :3]} if variant.side_inputs else {}
        return variant.extend(*cut(x, 0, 3), state, None, inputs)[1]

    narrow, wide = made("local_window", left=1), made("local_window", left=8)
    for other in (wide, made("dense"), made("softmax")):
        with pytest.raises(ConfigError, match="was made by LocalWindow"):
            other.extend(*cut(x, 3, 4), started(narrow))
    with pytest.raises(ConfigError, match="was made by GatedLinear"):
        made("linear").extend(*cut(x, 3, 4), started(made("gated_linear")))
    made("local_window", left=1).extend(*cut(x, 3, 4), started(narrow))


@pytest.mark.parametrize("batch", [-1, 2.5, True, None, "a"])
def test_a_batch_is_a_number(batch: object) -> None:
    with pytest.raises(ConfigError, match="batch"):
        attention().new_state(batch)  # type: ignore[arg-type]


def test_a_wide_window_takes_no_room_before_it_is_seen() -> None:
    wide = polyattn.create("local_window", left=2**31 - 1)
    assert isinstance(wide, polyattn.SequenceAttention)
    x = sequence(kv_heads=4)
    with torch.no_grad():
        state = wide.new_state(2, dtype=torch.float64)
        for t in range(TOKENS):
            out, state = wide.extend(*cut(x, t, t + 1), state)
    torch.testing.assert_close(out, attention()(*x, Mask.causal())[:, :, -1:])
    assert state.nbytes < 10 * x[1].nbytes


def test_what_gradients_have_seen_is_not_written_to() -> None:
    variant, (q, k, v) = attention(), sequence()
    q.requires_grad_()
    state, outs = variant.new_state(2, dtype=torch.float64), []
    for t in range(TOKENS):
        out, state = variant.extend(*cut((q, k, v), t, t + 1), state)
        outs.append(out)
    found = torch.autograd.grad(torch.cat(outs, 2).square().sum(), q)
    expected = torch.autograd.grad(variant(q, k, v, Mask.causal()).square().sum(), q)
    torch.testing.assert_close(found, expected)


def test_a_state_made_without_gradients_goes_on_outside() -> None:
    variant, x = attention(), sequence()
    with torch.inference_mode():
        _, state = variant.extend(*cut(x, 0, 5), variant.new_state(2, dtype=torch.float64))
    with torch.no_grad():
        out, _ = variant.extend(*cut(x, 5, 6), state)
    torch.testing.assert_close(out, variant(*cut(x, 0, 6), Mask.causal())[:, :, 5:])


def test_a_recurrent_state_is_a_value_too() -> None:
    tensors = {"s": torch.arange(6.0).reshape(2, 3)}
    state = RecurrentState(3, tensors)
    moved = state.reorder(torch.tensor([1]))
    assert moved.tensors["s"].tolist() == [[3.0, 4.0, 5.0]]
    assert (moved.length, state.nbytes, moved.nbytes) == (3, 24, 12)
    assert state.advance(2, moved.tensors).length == 5
