"""J. Custom operators: what they declare to torch is what they do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from polyattn.capabilities import Part
from polyattn.testing.results import Mismatch, Seen, proves
from polyattn.testing.subjects.sequence import Subject, blaming
from polyattn.testing.tools.cases import RECTANGULAR
from polyattn.testing.tools.masks import combine

TORCH = frozenset({"aten", "prim", "prims", "profiler", "inductor", "mkldnn", "quantized"})
"""The namespaces of torch's own operators."""


class _Calls(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Notes the first call of each operator that is not torch's own."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: dict[Any, tuple[tuple[Any, ...], dict[str, Any]]] = {}

    def __torch_dispatch__(
        self,
        func: Any,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func.namespace not in TORCH:
            self.seen.setdefault(func, (_copied(args), dict(kwargs or {})))
        return func(*args, **(kwargs or {}))


def _copied(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments as they are now: an operator may write to them."""
    return tuple(x.detach().clone() if isinstance(x, Tensor) else x for x in args)


@proves(
    "Custom operators are what they declare: they change only what their schema says, return no "
    "view of an argument, have gradients that autograd knows of, and the shapes, strides and "
    "dtypes that their fake says.",
    causes=(
        "register_fake returns another shape, dtype or number of tensors than the operator",
        "an output that is an argument or a view of one: clone it",
        "an argument written to that mutates_args does not name",
        "autograd registered below the operator: use register_autograd",
    ),
)
def check_custom_operators(subject: Subject, parts: tuple[Part, ...] = ()) -> None:
    shape = subject.fit(RECTANGULAR)
    mask = combine(sorted(subject.capabilities.requires | frozenset(parts)), shape)
    sample = subject.draw(shape).masked(mask)
    given, calls = sample.describe(), _Calls()
    instance = subject.at(shape)
    with calls:
        if subject.backward:
            instance.run(sample)
        else:
            instance(sample)
    tests = ["test_schema", "test_autograd_registration"]
    if subject.capabilities.compiles != "no":
        tests.append("test_faketensor")
    for operator, (args, kwargs) in calls.seen.items():
        told = f"{given}, operator {operator}"
        with blaming(told):
            found = torch.library.opcheck(
                operator, _learning(args), kwargs, test_utils=tests, raise_exception=False
            )
        _judge(found, told)


def _learning(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments, asking for gradients where they can: else autograd is not looked at."""
    return tuple(
        x.requires_grad_() if isinstance(x, Tensor) and x.is_floating_point() else x for x in args
    )


def _judge(found: Mapping[str, object], given: str) -> None:
    for test, outcome in found.items():
        if isinstance(outcome, BaseException):
            what = f"{test.removeprefix('test_')}: {' '.join(str(outcome).split())[:300]}"
            raise Mismatch(Seen(what=what, given=given)) from None
