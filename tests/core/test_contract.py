"""The base class around an author's ``attend``: what it checks, settles and remembers."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor

import polyattn
from polyattn import Call, Capabilities, Inputs, InputSize, Lengths, Mask, Refusal, Sizes
from polyattn.errors import ConfigError, MaskError, ShapeError, Unsupported


class Mean(polyattn.SequenceAttention):
    """The mean of the values: enough of a mechanism to see what the base class does."""

    capabilities = Capabilities(masks={"causal"}, state="key_value", lengths=Lengths(up_to=9))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        return v.mean(2, keepdim=True).expand(-1, -1, q.shape[2], -1)


class Gated(Mean):
    capabilities = Capabilities()
    side_inputs = {"gate": InputSize("kv_heads", "value_dim")}  # noqa: RUF012

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        return super().attend(q, k, v * inputs["gate"], mask, inputs)


class Learned(Mean):
    def build(self) -> None:
        self.factor = torch.nn.Parameter(torch.ones(self.require_sizes().heads))


def qkv(
    batch: int = 2, heads: int = 4, kv_heads: int = 2, queries: int = 3, keys: int = 5
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    sizes = ((batch, heads, queries, 8), (batch, kv_heads, keys, 8), (batch, kv_heads, keys, 6))
    q, k, v = (torch.randn(size, generator=generator) for size in sizes)
    return q, k, v


BAD_TENSORS = {
    "rank": (lambda q, k, v: (q[0], k, v), "four dimensions"),
    "batch": (lambda q, k, v: (q[:1], k, v), "one batch size"),
    "width": (lambda q, k, v: (q[..., :4], k, v), "one width"),
    "value length": (lambda q, k, v: (q, k, v[:, :, :4]), "same heads and length"),
    "value heads": (lambda q, k, v: (q, k, v[:, :1]), "same heads and length"),
    "heads": (lambda q, k, v: (q[:, :3], k, v), "multiple of the key heads"),
    "no width": (lambda q, k, v: (q, k, v[..., :0]), "widths of at least 1"),
    "dtype": (lambda q, k, v: (q, k.double(), v), "one dtype"),
    "device": (lambda q, k, v: (q, k.to("meta"), v), "one device"),
}


@pytest.mark.parametrize("case", BAD_TENSORS)
def test_tensors_that_do_not_fit_are_refused_also_after_a_good_call(case: str) -> None:
    spoil, message = BAD_TENSORS[case]
    variant = Mean()
    variant(*qkv())
    with pytest.raises(ShapeError, match=message):
        variant(*spoil(*qkv()))


def test_the_length_rule_holds_on_every_call() -> None:
    variant = Mean()
    variant(*qkv(keys=9))
    with pytest.raises(Unsupported, match="up to 9"):
        variant(*qkv(keys=10))
    variant(*qkv(keys=9))


def test_the_mask_is_checked_on_every_call() -> None:
    dense = polyattn.create("dense")
    dense(*qkv(), Mask.dense(torch.ones(3, 5, dtype=torch.bool)))
    with pytest.raises(MaskError, match="3"):
        dense(*qkv(), Mask.dense(torch.ones(5, 3, dtype=torch.bool)))
    with pytest.raises(MaskError, match="expected L <= S"):
        dense(*qkv(queries=5, keys=3), Mask.causal())


def test_what_is_not_claimed_is_refused_and_named() -> None:
    with pytest.raises(Unsupported, match="padding") as caught:
        Mean()(*qkv(), Mask.lengths([5, 4]))
    assert [r.option for r in caught.value.refusals] == ["mask"]
    with pytest.raises(Unsupported, match="dropout"):
        Mean(Mean.Config(dropout=0.1))


def test_a_raw_tensor_is_no_mask() -> None:
    with pytest.raises(MaskError, match=r"Mask\.dense"):
        Mean()(*qkv(), torch.ones(3, 5, dtype=torch.bool))  # type: ignore[arg-type]


def test_grouped_heads_are_repeated_as_neighbours() -> None:
    q, k, v = qkv()
    out = Mean()(q, k, v)
    assert out.shape == (2, 4, 3, 6)
    expected = v.mean(2)[:, [0, 0, 1, 1]]
    assert torch.equal(out[:, :, 0], expected)


@pytest.mark.parametrize("empty", ["batch", "queries", "keys"])
def test_what_shapes_alone_decide_is_zeros_with_zero_gradients(empty: str) -> None:
    q, k, v = (x.requires_grad_() for x in qkv(**{empty: 0}))
    out = Mean()(q, k, v)
    assert out.shape == (q.shape[0], 4, q.shape[2], 6)
    assert not out.any()
    out.sum().backward()
    for x in (q, k, v):
        assert x.grad is not None
        assert x.grad.shape == x.shape
        assert not x.grad.any()


def test_no_keys_give_zeros_even_where_the_queries_are_not_finite() -> None:
    q, k, v = qkv(keys=0)
    assert torch.equal(Mean()(q * torch.nan, k, v), torch.zeros(2, 4, 3, 6))


def test_side_inputs_must_be_there_known_and_of_their_size() -> None:
    q, k, v = qkv()
    gate = torch.rand(2, 2, 5, 6)
    assert torch.equal(Gated()(q, k, v, inputs={"gate": gate}), Mean()(q, k, v * gate))
    with pytest.raises(ShapeError, match="'gate'"):
        Gated()(q, k, v)
    with pytest.raises(ShapeError, match="'gat'"):
        Gated()(q, k, v, inputs={"gat": gate})
    with pytest.raises(ShapeError, match=r"\(2, 2, 5, 6\)"):
        Gated()(q, k, v, inputs={"gate": gate[:, :, :4]})
    with pytest.raises(ShapeError, match="gate"):
        Mean()(q, k, v, inputs={"gate": gate})


def test_parameters_need_sizes_and_sizes_must_be_those_of_the_tensors() -> None:
    with pytest.raises(ConfigError, match="sizes="):
        Learned()
    learned = Learned(sizes=Sizes(4, 8, 2, 6))
    learned(*qkv())
    with pytest.raises(ShapeError, match="built for"):
        learned(*qkv(heads=2))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"heads": 0, "head_dim": 4}, "heads = 0"),
        ({"heads": 4, "head_dim": 4, "kv_heads": 3}, "divisor of heads = 4"),
        ({"heads": 4, "head_dim": 4, "kv_heads": 0}, "kv_heads = 0"),
        ({"heads": True, "head_dim": 4}, "positive integer"),
        ({"heads": 2, "head_dim": 4, "max_length": -1}, "max_length = -1"),
    ],
)
def test_sizes_refuse_what_no_head_can_have(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Sizes(**wrong)


def test_a_checked_variant_still_copies_and_pickles() -> None:
    dense = polyattn.create("dense")
    q, k, v = qkv()
    out = dense(q, k, v)
    assert torch.equal(copy.deepcopy(dense)(q, k, v), out)
    assert torch.equal(pickle.loads(pickle.dumps(dense))(q, k, v), out)


def test_a_length_refused_by_override_alone_is_refused() -> None:
    class Picky(Mean):
        def refuse_lengths(self, queries, keys, window):  # type: ignore[no-untyped-def]
            return [Refusal("length", keys, "4", "give 4")] if keys != 4 else []

    Picky()(*qkv(keys=4))
    with pytest.raises(Unsupported, match="give 4"):
        Picky()(*qkv(keys=5))


def test_a_replica_answers_with_its_own_weights() -> None:
    class Scaled(Learned):
        def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
            return super().attend(q, k, v, mask, inputs) * self.factor[:, None, None]

    variant = Scaled(sizes=Sizes(4, 8, 4, 6))
    x = qkv(kv_heads=4)
    out = variant(*x)
    for replica in (variant._replicate_for_data_parallel(), copy.copy(variant)):
        replica._parameters = {"factor": torch.nn.Parameter(torch.zeros(4))}
        assert not replica(*x).any()
        assert torch.equal(variant(*x), out)


def test_unknown_fields_of_a_call_are_not_judged() -> None:
    assert Mean().refusals(Call()) == ()
    assert [r.option for r in Mean().refusals(Call(device="tpu"))] == ["device"]


def test_a_window_between_unrelated_sequences_is_refused() -> None:
    dense = polyattn.create("dense")
    assert isinstance(dense, polyattn.SequenceAttention)
    for part in ("causal", "window", "alibi"):
        refusals = dense.refusals(Call(cross=True, parts=frozenset({part})))
        assert [part in str(r) for r in refusals] == [True]
    assert dense.refusals(Call(cross=True, parts=frozenset({"padding"}))) == ()


def test_a_pattern_of_its_own_does_not_look_across_sequences() -> None:
    """Patterns speak of positions; the author does not have to think of that."""

    class Diagonal(polyattn.SequenceAttention):
        capabilities = polyattn.Capabilities()

        def pattern(self, queries: int, keys: int, *, device: torch.device) -> torch.Tensor:
            return torch.eye(queries, keys, dtype=torch.bool, device=device)

    (refusal,) = Diagonal().refusals(Call(cross=True))
    assert refusal.option == "cross"
    assert Diagonal().refusals(Call(cross=False)) == ()


def test_weights_are_the_map_of_any_variant_that_is_linear_in_its_values() -> None:
    q, k, v = qkv(keys=3 * 6 + 1)
    dense = polyattn.create("dense")
    assert isinstance(dense, polyattn.SequenceAttention)
    mask = Mask.lengths([19, 4])
    found = polyattn.weights(dense, q, k, mask)
    assert found.shape == (2, 4, 3, 19)
    assert not found[1, ..., 4:].any()
    torch.testing.assert_close(found @ v.repeat_interleave(2, 1), dense(q, k, v, mask))
    with pytest.raises(Unsupported, match="linear_in_values"):
        polyattn.weights(Mean(), q, k)


def test_a_feature_map_checks_its_own_shape() -> None:
    se = polyattn.create("se", channels=8)
    with pytest.raises(ShapeError, match="8 channels"):
        se(torch.zeros(2, 7, 4, 4))
    with pytest.raises(ShapeError, match="spatial dimensions"):
        se(torch.zeros(2, 8))
    with pytest.raises(ShapeError, match="keep as bool"):
        se(torch.zeros(2, 8, 4, 4), torch.ones(2, 4, 5, dtype=torch.bool))
    assert se(torch.zeros(0, 8, 4, 4)).shape == (0, 8, 4, 4)
    with pytest.raises(ConfigError, match="sizes"):
        polyattn.create("se", Sizes(2, 4))
