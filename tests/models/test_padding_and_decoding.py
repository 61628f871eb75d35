"""A sample alone, in a padded batch, packed with others, or cut in pieces: the same answer."""

import pytest
import torch

import polyattn
from polyattn import Mask
from polyattn.errors import ConfigError, MaskError, ShapeError, Unsupported
from polyattn.models.causal_lm import generate

VARIANTS = {
    "softmax": "softmax",
    "dense": "dense",
    "window": {"name": "local_window", "left": 3, "right": 0},
    "linear": "linear",
    "gated": "gated_linear",
    "mixed": ["softmax", "linear"],
}
POSITIONS = ["none", "sinusoidal", "learned", "rope", "alibi"]
# What has no logits to bias, and what keeps sums over the whole past.
WITHOUT_BIAS = WITHOUT_SEGMENTS = ("linear", "gated", "mixed")
REFUSED = [(variant, "alibi") for variant in WITHOUT_BIAS]
TAKEN = [(v, p) for v in VARIANTS for p in POSITIONS if (v, p) not in REFUSED]
LENGTHS = (7, 3, 5)


def model_of(kind, variant, position, **changes):
    """A small float64 model with biases that are not zero."""
    torch.manual_seed(0)
    config = {
        "model": kind,
        "vocab_size": 13,
        "d_model": 24,
        "layers": 2,
        "heads": 4,
        "kv_heads": 2,
        "attention": VARIANTS[variant],
        "position": position,
        "norm": "rmsnorm",
        "query_key_norm": "rmsnorm",
        "feed_forward": "swiglu",
        "max_length": 16,
        **changes,
    }
    model = polyattn.build(config).double()
    for name, parameter in model.named_parameters():
        if "bias" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    return model


def padded(side, lengths=LENGTHS):
    """ids (B, L) with garbage where they are padded, and what is real."""
    generator = torch.Generator().manual_seed(1)
    longest = max(lengths)
    ids = torch.randint(0, 13, (len(lengths), longest), generator=generator)
    slots = torch.arange(longest)
    counts = torch.tensor(lengths)[:, None]
    return ids, slots >= longest - counts if side == "left" else slots < counts


@pytest.mark.parametrize(("variant", "position"), REFUSED)
@pytest.mark.parametrize("kind", ["encoder", "causal_lm"])
def test_positions_that_a_variant_cannot_have_are_refused_when_built(kind, variant, position):
    with pytest.raises(Unsupported, match=f"mask = {position}"):
        model_of(kind, variant, position)


@pytest.mark.parametrize("variant", WITHOUT_SEGMENTS)
def test_packed_documents_are_refused_by_who_cannot_part_them(variant):
    with pytest.raises(Unsupported, match="mask = segments"):
        model_of("causal_lm", variant, "rope")(
            torch.zeros(1, 9, dtype=torch.long), Mask.documents([4, 2, 3])
        )


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(("variant", "position"), TAKEN)
@pytest.mark.parametrize("kind", ["encoder", "causal_lm"])
def test_a_padded_batch_equals_each_sample_alone(kind, variant, position, side):
    model = model_of(kind, variant, position)
    ids, real = padded(side)
    # An encoder takes what is causal or nothing, if the caller's mask is.
    order = Mask.causal() if variant == "gated" else Mask.full()
    out = model(ids, Mask.padding(real) & order)
    for sample, keep in enumerate(real):
        alone = model(ids[sample, keep][None], order)
        torch.testing.assert_close(out[sample, keep][None], alone, atol=1e-9, rtol=0)


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("variant", [v for v in VARIANTS if v not in WITHOUT_SEGMENTS])
def test_packed_documents_equal_each_alone(variant, position):
    model = model_of("causal_lm", variant, position)
    ids = torch.randint(0, 13, (1, 9), generator=torch.Generator().manual_seed(1))
    out = model(ids, Mask.documents([4, 2, 3]))
    start = 0
    for length in (4, 2, 3):
        alone = model(ids[:, start : start + length])
        torch.testing.assert_close(out[:, start : start + length], alone, atol=1e-9, rtol=0)
        start += length


CUTS = [(1,) * 7, (3, 4), (0, 5, 0, 2)]


@pytest.mark.parametrize("cuts", CUTS, ids=str)
@pytest.mark.parametrize(("variant", "position"), TAKEN)
def test_any_cut_equals_the_whole(variant, position, cuts):
    model = model_of("causal_lm", variant, position)
    ids, real = padded("left")
    whole = model(ids, Mask.padding(real))
    state, outs, start = model.new_state(len(LENGTHS)), [], 0
    for length in cuts:
        chunk = slice(start, start + length)
        out, state = model.extend(ids[:, chunk], state, Mask.padding(real[:, chunk]))
        outs.append(out)
        start += length
    assert state.length == 7
    torch.testing.assert_close(torch.cat(outs, 1)[real], whole[real], atol=1e-9, rtol=0)


@pytest.mark.parametrize(("variant", "position"), TAKEN)
def test_left_padded_prompts_go_on_like_each_alone(variant, position):
    model = model_of("causal_lm", variant, position)
    ids, real = padded("left")
    more = torch.randint(0, 13, (3, 3), generator=torch.Generator().manual_seed(2))
    _, state = model.extend(ids, model.new_state(3), Mask.padding(real))
    steps = []
    for i in range(3):
        out, state = model.extend(more[:, i : i + 1], state)
        steps.append(out)
    for sample, keep in enumerate(real):
        alone = model(torch.cat([ids[sample, keep], more[sample]])[None])[:, -3:]
        torch.testing.assert_close(torch.cat(steps, 1)[sample][None], alone, atol=1e-9, rtol=0)


def test_documents_go_on_across_a_cut():
    model = model_of("causal_lm", "softmax", "rope")
    ids = torch.randint(0, 13, (1, 9), generator=torch.Generator().manual_seed(1))
    segments = torch.tensor([[0, 0, 0, 0, 1, 1, 0, 0, 2]])
    whole = model(ids, Mask.segments(segments))
    state, outs = model.new_state(1), []
    for start, stop in ((0, 3), (3, 5), (5, 9)):
        out, state = model.extend(ids[:, start:stop], state, Mask.segments(segments[:, start:stop]))
        outs.append(out)
    torch.testing.assert_close(torch.cat(outs, 1), whole, atol=1e-9, rtol=0)


@pytest.mark.parametrize("variant", ["softmax", "window", "linear"])
def test_gradients_pass_through_the_steps(variant):
    model = model_of("causal_lm", variant, "rope")
    ids, _ = padded("left", (5, 5))
    whole = torch.autograd.grad(model(ids).square().sum(), list(model.parameters()))
    state, outs = model.new_state(2), []
    for chunk in (ids[:, :2], ids[:, 2:3], ids[:, 3:]):
        out, state = model.extend(chunk, state)
        outs.append(out)
    cut = torch.autograd.grad(torch.cat(outs, 1).square().sum(), list(model.parameters()))
    for one, other in zip(whole, cut, strict=True):
        torch.testing.assert_close(one, other, atol=1e-8, rtol=1e-8)


@torch.no_grad()
@pytest.mark.parametrize("variant", ["softmax", "window", "linear"])
def test_a_state_may_be_extended_twice_and_reordered(variant):
    model = model_of("causal_lm", variant, "rope")
    ids, real = padded("left")
    _, state = model.extend(ids, model.new_state(3), Mask.padding(real))
    first, _ = model.extend(ids[:, :2], state)
    model.extend(ids[:, 2:4], state)
    again, _ = model.extend(ids[:, :2], state)
    assert torch.equal(first, again)
    index = torch.tensor([2, 0, 0])
    moved, after = model.extend(ids[index, :2], state.reorder(index))
    torch.testing.assert_close(moved, first[index], atol=1e-12, rtol=0)
    assert after.length == 9
    assert state.nbytes > 0


def test_the_language_model_is_causal_without_being_asked():
    model = model_of("causal_lm", "softmax", "rope")
    ids, _ = padded("right", (6,))
    other = ids.clone()
    other[:, 4] = (other[:, 4] + 1) % 13
    assert torch.equal(model(ids)[:, :4], model(other)[:, :4])
    assert not torch.allclose(model(ids)[:, 4:], model(other)[:, 4:])


def test_the_encoder_sees_both_ways():
    model = model_of("encoder", "softmax", "rope")
    ids, _ = padded("right", (6,))
    other = ids.clone()
    other[:, 4] = (other[:, 4] + 1) % 13
    assert not torch.allclose(model(ids)[:, :4], model(other)[:, :4])


@pytest.mark.parametrize("kind", ["encoder", "causal_lm"])
def test_positions_matter_to_a_model_that_has_them(kind):
    ids = torch.tensor([[1, 2, 3, 4, 5, 6]])
    for position in POSITIONS:
        # Two causal layers tell order by themselves: the first says how much each token saw.
        model = model_of(kind, "softmax", position, layers=1)
        swapped = model(ids[:, [1, 0, 3, 2, 4, 5]])[:, 5]
        assert torch.allclose(model(ids)[:, 5], swapped, atol=1e-9) == (position == "none")


def test_an_encoder_without_vocabulary_reads_embeddings():
    model = model_of("encoder", "softmax", "sinusoidal", vocab_size=None)
    assert model(torch.randn(2, 5, 24, dtype=torch.float64)).shape == (2, 5, 24)
    with pytest.raises(ShapeError, match=r"d_model = 24\), got \(2, 5\)"):
        model(torch.zeros(2, 5, dtype=torch.long))


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (torch.zeros(5, dtype=torch.long), r"\(batch, length\), got torch.int64 \(5,\)"),
        (torch.zeros(2, 5), r"got torch.float32 \(2, 5\); use ids.long"),
        (torch.full((2, 5), 13), r"from 0 to vocab_size - 1 = 12, got 13"),
        (torch.full((2, 5), -1), r"got -1"),
        (torch.zeros(2, 17, dtype=torch.long), r"at most max_length = 16 tokens, got 17"),
    ],
)
def test_wrong_ids_are_named(ids, message):
    with pytest.raises(ShapeError, match=message):
        model_of("causal_lm", "softmax", "learned")(ids)


def test_wrong_masks_are_named_also_after_a_good_call():
    model = model_of("causal_lm", "softmax", "rope")
    ids, real = padded("left")
    model(ids, Mask.padding(real))
    with pytest.raises(MaskError, match="padding"):
        model(ids, Mask.padding(real[:, 1:]))
    with pytest.raises(MaskError, match=r"Mask\.padding"):
        model(ids, real)


def test_a_state_ends_at_the_longest_length_and_belongs_to_its_model():
    model = model_of("causal_lm", "softmax", "learned")
    ids = torch.zeros(1, 10, dtype=torch.long)
    _, state = model.extend(ids, model.new_state(1))
    with pytest.raises(ShapeError, match="max_length = 16 tokens, got 20"):
        model.extend(ids, state)
    with pytest.raises(ConfigError, match="this model's new_state"):
        model.extend(ids, polyattn.KeyValueState())


def test_generating_continues_each_prompt_as_if_alone():
    model = model_of("causal_lm", "softmax", "rope", dropout=0.5).train()
    ids, real = padded("left")
    texts = generate(model, ids, 4, mask=Mask.padding(real))
    assert model.training
    assert torch.equal(texts[:, :7], ids)
    for sample, keep in enumerate(real):
        alone = generate(model, ids[sample, keep][None], 4)
        assert torch.equal(alone[0, -4:], texts[sample, -4:])
        model.eval()
        for i in range(4):
            likeliest = model(alone[:, : -4 + i]).argmax(-1)[0, -1]
            assert likeliest == alone[0, -4 + i]


def test_generating_leaves_each_part_in_its_own_mode():
    model = model_of("causal_lm", "softmax", "rope", dropout=0.5).train()
    frozen = next(iter(model.layers))
    frozen.eval()
    before = {name: part.training for name, part in model.named_modules()}
    assert set(before.values()) == {True, False}
    generate(model, torch.zeros(1, 2, dtype=torch.long), 1)
    assert {name: part.training for name, part in model.named_modules()} == before


def test_generating_draws_from_its_own_generator():
    model = model_of("causal_lm", "softmax", "rope")
    ids, _ = padded("left", (4, 4))
    before = torch.get_rng_state()
    drawn = [
        generate(model, ids, 8, temperature=2.0, generator=torch.Generator().manual_seed(seed))
        for seed in (3, 3, 4)
    ]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert torch.equal(torch.get_rng_state(), before)
    with pytest.raises(ConfigError, match="temperature >= 0"):
        generate(model, ids, 1, temperature=float("nan"))
    with pytest.raises(ShapeError, match="at least one id"):
        generate(model, ids[:, :0], 1)
