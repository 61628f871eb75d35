"""Operations: who answers, in which order, and why the others did not."""

from __future__ import annotations

import pytest
import torch

import polyattn
from polyattn import Call, Mask
from polyattn.errors import ConfigError, Unavailable, Unsupported
from polyattn.factory import Blueprint
from polyattn.operation import Operation


class Even(polyattn.SequenceAttention):
    """Answers two, but only for an even number of keys."""

    capabilities = polyattn.Capabilities(masks={"causal"}, lengths=polyattn.Lengths(multiple_of=2))
    mark = 2.0

    def attend(self, q, k, v, mask, inputs):  # type: ignore[no-untyped-def]
        return torch.full((*q.shape[:3], v.shape[3]), self.mark)


class Any(Even):
    capabilities = polyattn.Capabilities(masks={"causal", "padding"})
    mark = 7.0


class Broken(Any):
    def build(self) -> None:
        raise AssertionError("never built")


def operation() -> Operation:
    return Operation("number", {"even": Even(), "any": Any()}, Even.Config())


def answer(made: Operation, keys: int, mask: Mask | None = None) -> float:
    q = torch.zeros(2, 1, 2, 4)
    k = torch.zeros(2, 1, keys, 4)
    return float(made(q, k, k, mask).mean())


def test_the_first_willing_member_answers_and_length_is_asked_each_time() -> None:
    made = operation()
    assert [answer(made, n) for n in (2, 3, 4, 3)] == [2, 7, 2, 7]
    assert answer(made, 2, Mask.lengths([2, 1])) == 7


def test_the_choice_comes_with_the_reasons_of_those_passed_over() -> None:
    choice = operation().choose(Call(queries=2, keys=3))
    assert choice.name == "any"
    ((name, refusals),) = choice.passed_over
    assert name == "even"
    assert "multiples of 2" in str(refusals[0])


def test_where_nobody_answers_every_member_says_why() -> None:
    with pytest.raises(Unsupported) as caught:
        answer(operation(), 2, Mask.bias(torch.zeros(2, 2)))
    assert [r.option for r in caught.value.refusals] == ["even: mask", "any: mask"]


def test_a_member_that_cannot_be_loaded_is_passed_over_with_its_reason() -> None:
    made = Operation("number", {"any": Any()}, Any.Config(), None, {"gone": "no such module"})
    assert "no such module" in str(made.choose(Call()).passed_over)
    with pytest.raises(Unavailable, match="no such module"):
        Operation("number", {}, Any.Config(), None, {"gone": "no such module"})


def test_a_member_with_parameters_is_unusable_and_stops_nobody() -> None:
    class Learned(Any):
        def build(self) -> None:
            self.weight = torch.nn.Parameter(torch.ones(1))

    made = Operation("number", {"learned": Learned(), "any": Any()}, Any.Config())
    assert made.names == ("any",)
    assert "has parameters" in str(made.choose(Call()).passed_over)
    with pytest.raises(Unavailable, match="has parameters"):
        Operation("number", {"learned": Learned()}, Any.Config())


def test_a_member_whose_code_is_broken_stops_nobody() -> None:
    classes = {"broken": Broken, "any": Any}
    made = Blueprint("number", "sequence", Any.Config(), None, classes).build()
    assert isinstance(made, Operation)
    assert made.names == ("any",)
    assert made.unusable == {"broken": "never built"}


def test_an_operation_can_be_asked_for_with_its_distribution() -> None:
    assert isinstance(polyattn.create("polyattn:softmax"), Operation)
    names = [row.name for row in polyattn.explain("polyattn:softmax", Call())]
    assert names[:2] == ["polyattn:softmax", "windowed"]


def test_options_without_a_name_are_not_dropped() -> None:
    with pytest.raises(ConfigError, match="no name"):
        polyattn.explain(None, Call(), {"left": 3})


def test_members_share_one_config_and_leave_no_names_in_a_checkpoint() -> None:
    softmax = polyattn.create("softmax", scale=0.3)
    q = torch.randn(1, 2, 5, 8)
    torch.testing.assert_close(softmax(q, q, q), polyattn.create("dense", scale=0.3)(q, q, q))
    assert softmax.state_dict() == {}


def test_dropout_reaches_the_member_that_answers() -> None:
    softmax = polyattn.create("softmax", dropout=0.5)
    q = torch.randn(1, 2, 5, 8)
    assert not torch.equal(softmax(q, q, q), softmax(q, q, q))
    softmax.eval()
    assert torch.equal(softmax(q, q, q), softmax(q, q, q))


def test_an_operation_decodes_with_the_key_value_state() -> None:
    softmax = polyattn.create("softmax")
    assert isinstance(softmax, Operation)
    q = torch.randn(1, 2, 9, 8)
    state, outs = softmax.new_state(1), []
    mask = Mask.window(3, 0)
    with torch.no_grad():
        for t in range(9):
            x = q[:, :, t : t + 1]
            out, state = softmax.extend(x, x, x, state, mask)
            outs.append(out)
    torch.testing.assert_close(torch.cat(outs, 2), softmax(q, q, q, Mask.causal() & mask))
