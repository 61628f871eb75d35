"""Carrying a call to another device: proven with a place whose tensors are all copies."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import pytest
import torch
from tests.testing.broken_manners import OpensTheMaskAfterwards, ScalesInPlace
from tests.testing.broken_map_manners import MultipliesInPlace
from tests.testing.broken_maps import PlainGate
from tests.testing.correct import Plain
from torch import Tensor, nn

from polyattn import Support
from polyattn.errors import Unsupported
from polyattn.mask import Mask
from polyattn.testing import Result, Status, run_checks, subjects_of, subjects_of_class
from polyattn.testing.checks.autograd import LAYOUTS
from polyattn.testing.planned import Trait
from polyattn.testing.results import Mismatch
from polyattn.testing.runner import checks_of
from polyattn.testing.tools.devices import CPU, Place


@dataclasses.dataclass(frozen=True)
class Elsewhere(Place):
    """A device that is none: whatever goes there, or comes back, is another tensor."""

    holding: bool = True

    @property
    def here(self) -> bool:
        return False

    def carry(self, x: Tensor) -> Tensor:
        return x.clone()

    def fetch(self, x: Tensor) -> Tensor:
        return x.clone()

    def holds(self, x: Tensor) -> bool:
        return self.holding


THERE = Elsewhere()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides_are_kept_and_each_element_gets_its_own_gradient(layout: str) -> None:
    x = LAYOUTS[layout](torch.arange(2.0 * 3 * 4 * 5).reshape(2, 3, 4, 5)).detach()
    x.requires_grad_()
    seen: list[Tensor] = []

    def square(there: Tensor) -> Tensor:
        seen.append(there)
        return there * there

    out = THERE.call(square, x)
    out.sum().backward()
    assert seen[0].stride() == x.stride()
    assert seen[0].data_ptr() != x.data_ptr()
    assert torch.equal(out, x * x)
    assert x.grad is not None
    assert torch.equal(x.grad, 2 * x.detach())


@pytest.mark.parametrize("expanded", [False, True])
def test_what_is_written_to_there_is_written_to_here(expanded: bool) -> None:
    x = torch.arange(6.0).reshape(2, 3)
    x = x[:1].expand(2, 3) if expanded else x
    before, version = x.clone(), x._version
    THERE.call(lambda x: x + 1, x)
    assert torch.equal(x, before)
    assert x._version == version
    THERE.call(lambda x: (x[:1] if expanded else x).add_(1), x)
    assert torch.equal(x, before + 1)
    assert x._version > version


def test_a_mask_is_carried_whole_and_written_back() -> None:
    keep = torch.tensor([[True, True, False]])
    mask = Mask.padding(keep) & Mask.causal() & Mask.bias(torch.zeros(3, 3))

    def meddle(mask: Mask, inputs: dict[str, Tensor]) -> Tensor:
        assert mask.real is not keep
        assert mask.parts == {"padding", "causal", "bias"}
        assert mask.real is not None
        mask.real.logical_not_()
        return inputs["gate"] * 2

    gate = torch.ones(2)
    assert torch.equal(THERE.call(meddle, mask, {"gate": gate}), torch.full((2,), 2.0))
    assert torch.equal(keep, torch.tensor([[False, False, True]]))


def test_an_output_that_lies_elsewhere_is_a_finding() -> None:
    with pytest.raises(Mismatch, match="the output lies on cpu"):
        Elsewhere(holding=False).call(lambda x: x, torch.ones(1))
    layer = Elsewhere(holding=False).settle(nn.Linear(2, 2))
    with pytest.raises(Mismatch, match="lies on cpu"):
        layer(torch.ones(1, 2))


def test_on_the_cpu_nothing_is_moved() -> None:
    x = torch.ones(2)
    assert CPU.call(lambda x: x, x) is x
    layer = nn.Linear(2, 2)
    assert CPU.settle(layer) is layer
    assert not layer._forward_pre_hooks


class Keeps(nn.Module):
    """Keeps what it was given, and writes to it."""

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        self.given = x
        with torch.no_grad():
            x.mul_(2)
        return x + 0


@pytest.mark.parametrize("copied", [False, True])
def test_a_module_is_called_from_here_and_so_are_its_copies(copied: bool) -> None:
    module = THERE.settle(Keeps())
    if copied:
        module = pickle.loads(pickle.dumps(copy.deepcopy(module)))
    x = torch.ones(2)
    out = module(x)
    assert module.given is not x
    assert out is not module.given
    assert torch.equal(x, torch.full((2,), 2.0))
    y = torch.ones(2)
    module(x=y)
    assert torch.equal(y, torch.full((2,), 2.0))


@pytest.mark.parametrize("name", ["gated_linear", "se"])
def test_a_right_variant_is_right_elsewhere(name: str) -> None:
    planned = checks_of(subjects_of(name, THERE))
    bad = [r for r in run_checks(planned, on_fail="collect") if not r.status.good]
    assert not bad, bad[0].failure or bad[0].reason


@pytest.mark.parametrize(
    ("variant", "check"),
    [
        (ScalesInPlace, "check_inputs_not_mutated"),
        (OpensTheMaskAfterwards, "check_inputs_not_mutated"),
        (MultipliesInPlace, "check_fm_inputs_not_mutated"),
    ],
)
def test_a_write_is_found_elsewhere_too(variant: type, check: str) -> None:
    subjects = subjects_of_class(variant.__name__, variant, THERE)
    planned = [x for x in checks_of(subjects) if x.id.startswith(check)]
    statuses = {result.status for result in run_checks(planned, on_fail="collect")}
    assert Status.FAILED in statuses


class OnlyElsewhere(Plain):
    capabilities = dataclasses.replace(Plain.capabilities, devices={"cuda": Support()})


class AnswersAnywhere(OnlyElsewhere):
    def forward(self, q, k, v, mask=None, inputs=None):  # type: ignore[no-untyped-def]
        return self.attend(q, k, v, mask or Mask.full(), inputs or {})


class LeavesItToTheKernel(OnlyElsewhere):
    def forward(self, q, k, v, mask=None, inputs=None):  # type: ignore[no-untyped-def]
        raise RuntimeError("expected a pointer to the device, got one to the host")


class RefusesWithoutAName(OnlyElsewhere):
    def forward(self, q, k, v, mask=None, inputs=None):  # type: ignore[no-untyped-def]
        raise Unsupported("it", [])


class GateElsewhere(PlainGate):
    capabilities = dataclasses.replace(PlainGate.capabilities, devices={"cuda": Support()})


def of(variant: type) -> dict[str, Result]:
    planned = checks_of(subjects_of_class(variant.__name__, variant))
    return {result.id: result for result in run_checks(planned, on_fail="collect")}


@pytest.mark.parametrize("variant", [OnlyElsewhere, GateElsewhere])
def test_a_device_that_is_not_claimed_is_listed_and_refused(variant: type) -> None:
    results = of(variant)
    assert {id: result.status for id, result in results.items()} == {
        "check_unclaimed_device_is_refused": Status.PASSED,
        "check_output_shape_dtype_device": Status.NOT_CLAIMED,
    }
    told = results["check_output_shape_dtype_device"].reason
    assert told == "the device cpu is not claimed"


@pytest.mark.parametrize("variant", [AnswersAnywhere, LeavesItToTheKernel, RefusesWithoutAName])
def test_one_that_does_not_refuse_is_caught(variant: type) -> None:
    result = of(variant)["check_unclaimed_device_is_refused"]
    assert result.status is Status.FAILED
    assert "cpu" in result.reason


def test_elsewhere_what_measures_the_cpu_is_not_run() -> None:
    for variant in (Plain, PlainGate):
        here = list(checks_of(subjects_of_class("it", variant)))
        bound = {check.id for check in here if Trait.ON_THE_CPU in check.traits}
        there = {check.id: check for check in checks_of(subjects_of_class("it", variant, THERE))}
        idle = {id for id, check in there.items() if "carried out on the CPU" in check.reason}
        run_here = {check.id for check in here if check.withheld is None}
        assert idle == bound & run_here
        assert idle
