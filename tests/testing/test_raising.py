"""What must raise: the right exception is handed on, anything else is a finding that says which."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from polyattn.errors import MaskError
from polyattn.testing.results import Mismatch
from polyattn.testing.tools.raising import must_raise, need_value_error


def raising(error: BaseException) -> Callable[[], object]:
    def call() -> object:
        raise error

    return call


def refused(call: Callable[[], object]) -> Exception:
    return must_raise(call, MaskError, asked="a tensor", expected="MaskError", given="x (2,)")


def test_the_right_exception_is_handed_on() -> None:
    error = MaskError("no mask")
    assert refused(raising(error)) is error
    need_value_error(raising(ValueError("4 do not fit 3")), "an index", "x (2,)")


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda: 3, "a tensor was answered, expected MaskError"),
        (
            raising(RuntimeError("size 4\nand more")),
            "a tensor raised RuntimeError: size 4; expected MaskError",
        ),
        (raising(SystemExit(2)), "a tensor raised SystemExit: 2; expected MaskError"),
    ],
)
def test_anything_else_is_a_finding(call: Callable[[], object], what: str) -> None:
    with pytest.raises(Mismatch) as caught:
        refused(call)
    assert caught.value.seen.what == what
    assert caught.value.seen.given == "x (2,)"


def test_a_missing_package_is_no_finding() -> None:
    with pytest.raises(ImportError):
        refused(raising(ImportError("no such package")))
