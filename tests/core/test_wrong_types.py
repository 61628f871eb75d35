"""Arguments of another type raise the project's errors: what was expected, what came."""

from __future__ import annotations

from collections.abc import Callable

import numpy
import pytest
import torch
from torch import Tensor

import polyattn
from polyattn import Mask, Sizes
from polyattn.errors import ConfigError, MaskError, PolyattnError, ShapeError
from polyattn.layers.memory import Memory
from polyattn.layers.positions import Count

SIZES = Sizes(heads=2, head_dim=4)
X = torch.zeros(3, 2, 5, 4)
NOT_TENSORS = {
    "None": None,
    "list": [[1.0, 2.0]],
    "str": "q",
    "numpy": numpy.zeros((3, 2, 5, 4), numpy.float32),
}


@pytest.mark.parametrize("wrong", NOT_TENSORS.values(), ids=NOT_TENSORS.keys())
@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("name", ["softmax", "dense", "linear"])
@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no_grad"])
def test_q_k_and_v_must_be_tensors(name: str, place: int, wrong: object, grad: bool) -> None:
    variant = polyattn.create(name)
    assert isinstance(variant, polyattn.SequenceAttention)
    arguments: list[object] = [X, X, X]
    arguments[place] = wrong
    state = variant.new_state(3, SIZES)
    calls: tuple[Callable[..., object], ...] = (
        variant,
        variant.expected,
        lambda *qkv: variant.extend(*qkv, state),
    )
    for call in calls:
        with torch.set_grad_enabled(grad), pytest.raises(ShapeError, match="a tensor, got"):
            call(*arguments)


def test_the_argument_is_named_and_what_came() -> None:
    with pytest.raises(ShapeError, match=r"expected k to be a tensor, got None; give one"):
        polyattn.create("softmax")(X, None, X)
    with pytest.raises(ShapeError, match=r"expected v to be a tensor, got a list; torch.as_ten"):
        polyattn.create("softmax")(X, X, [1.0])


def test_an_error_in_the_variant_itself_stays_what_it_is() -> None:
    class Broken(polyattn.SequenceAttention):
        capabilities = polyattn.Capabilities()

        def attend(self, q, k, v, mask, inputs):  # type: ignore[no-untyped-def]
            return q.no_such_thing

    with pytest.raises(AttributeError, match="no_such_thing"):
        Broken()(X, X, X)


@pytest.mark.parametrize("wrong", NOT_TENSORS.values(), ids=NOT_TENSORS.keys())
def test_a_map_and_its_mask_must_be_tensors(wrong: object) -> None:
    variant = polyattn.create("se", channels=2)
    with pytest.raises(ShapeError, match="expected x to be a tensor"):
        variant(wrong)
    if wrong is not None:
        with pytest.raises(ShapeError, match="keep"):
            variant(torch.zeros(3, 2, 5, 4), wrong)


@pytest.mark.parametrize("wrong", [[X], {"gate": [1.0]}, {"gate": None}, {}, {"gates": X}])
def test_side_inputs_must_be_tensors_by_name(wrong: object) -> None:
    variant = polyattn.create("gated_linear")
    with pytest.raises(ShapeError, match="side input"):
        variant(X, X, X, Mask.causal(), wrong)


WRONG_INDICES = {
    "floats": torch.tensor([0.0]),
    "bools": torch.tensor([True, False, True]),
    "rank_two": torch.tensor([[0]]),
    "rank_zero": torch.tensor(0),
    "beyond": torch.tensor([3]),
    "negative": torch.tensor([-1]),
    "list": [0],
}


@pytest.mark.parametrize("index", WRONG_INDICES.values(), ids=WRONG_INDICES.keys())
@pytest.mark.parametrize("name", ["softmax", "linear"])
@pytest.mark.parametrize("seen", [0, 5])
def test_an_index_of_samples_is_one(name: str, index: Tensor, seen: int) -> None:
    variant = polyattn.create(name)
    assert isinstance(variant, polyattn.SequenceAttention)
    state = variant.new_state(3, SIZES)
    if seen:
        state = variant.extend(X, X, X, state, Mask.padding(torch.ones(3, 5).bool()))[1]
    with pytest.raises(ShapeError, match="reorder: expected"):
        state.reorder(index)
    with pytest.raises(ShapeError, match="reorder: expected"):
        Memory(X, X).reorder(index)
    with pytest.raises(ShapeError, match="reorder: expected"):
        Count(5, torch.tensor([3, 4, 5])).reorder(index)


@pytest.mark.parametrize("name", ["softmax", "linear", "gated_linear"])
def test_a_state_can_be_reordered_before_its_first_token(name: str) -> None:
    variant = polyattn.create(name)
    assert isinstance(variant, polyattn.SequenceAttention)
    index = torch.tensor([0, 1, 1, 2])
    fresh = variant.new_state(4, SIZES)
    moved = variant.new_state(3, SIZES).reorder(index)
    x = torch.randn(4, 2, 5, 4, generator=torch.Generator().manual_seed(0))
    inputs = dict.fromkeys(variant.side_inputs, x)
    got, want = (variant.extend(x, x, x, s, None, inputs)[0] for s in (moved, fresh))
    assert torch.equal(got, want)


def test_a_memory_counts_its_padding() -> None:
    mask = Mask.padding(torch.ones(3, 5, dtype=torch.bool))
    assert Memory(X, X, {}, mask).nbytes == 2 * X.nbytes + 15


@pytest.mark.parametrize("function", [lambda i, j: i >= j, lambda b, h, i, j, k: i >= j])
def test_a_predicate_takes_four_indices(function: Callable[..., Tensor]) -> None:
    with pytest.raises(MaskError, match=r"take the four indices \(b, h, i, j\), got .*argument"):
        Mask.where(function).keep(4, 4, 2, 3)


def test_a_type_error_within_a_predicate_stays_what_it_is() -> None:
    def sees(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return i + "j"  # type: ignore[operator, no-any-return]

    with pytest.raises(TypeError, match="unsupported operand"):
        Mask.where(sees).keep(4, 4, 2, 3)


@pytest.mark.parametrize("wrong", [[2.0, 3.0], [2, -1], [True, 2], numpy.array([2, 3]), 3, None])
def test_lengths_are_host_integers(wrong: object) -> None:
    with pytest.raises(MaskError, match="length"):
        Mask.lengths(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["softmax", "dense", "linformer", "se"])
@pytest.mark.parametrize("sizes", [{"heads": 2, "head_dim": 4}, (2, 4), "2x4", 2.0])
def test_sizes_are_sizes(name: str, sizes: object) -> None:
    with pytest.raises(ConfigError, match=r"expected polyattn\.Sizes"):
        polyattn.create(name, sizes)  # type: ignore[arg-type]


def test_the_way_from_a_dict_to_sizes_is_said() -> None:
    cls = type(polyattn.create("dense"))
    with pytest.raises(ConfigError, match=r"got a dict; use polyattn\.Sizes\(\*\*sizes\)"):
        polyattn.create("dense", {"heads": 2})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="got a dict"):
        cls(None, {"heads": 2})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="got a dict"):
        cls().new_state(1, {"heads": 2})  # type: ignore[arg-type, call-arg, operator]


@pytest.mark.parametrize("name", ["dense", "se"])
def test_a_config_is_no_dict(name: str) -> None:
    cls = type(polyattn.create(name, channels=2 if name == "se" else None))
    with pytest.raises(ConfigError, match=r"expected its config as a polyattn\.Options, got a di"):
        cls({"scale": 1.0})  # type: ignore[arg-type]


def test_every_one_of_them_is_a_value_error() -> None:
    assert issubclass(ShapeError, ValueError)
    assert issubclass(MaskError, ValueError)
    assert issubclass(ConfigError, PolyattnError)
