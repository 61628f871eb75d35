"""How close is close enough, and the one comparison that all checks use.

The rules and the measurements behind them: values in float64 against a loop, 1e-10; two runs of
the same code, 1e-11 in float64 and 16 eps elsewhere (measured: at most 2.3); low precision by
``3 e0 + 2 u``, where e0 is the error of the plain computation in the same dtype and
u = eps * max|expected| (measured for correct code that sums in another order: up to 3.4 e0).
NaN is looked for before anything is compared, and is never equal to anything.
"""

from __future__ import annotations

import torch
from torch import Tensor

from polyattn.testing.results import Mismatch, Seen

VALUE_FLOAT64 = 1e-10
SAME_FLOAT64 = 1e-11
SAME_EPS = 16.0


def largest(tensor: Tensor) -> float:
    """The largest finite magnitude, 0 for an empty tensor."""
    magnitudes = tensor.detach().abs().double()
    magnitudes = magnitudes[magnitudes.isfinite()]
    return float(magnitudes.max()) if magnitudes.numel() else 0.0


def value_tolerance(
    expected: Tensor, plain: Tensor | None, dtype: torch.dtype, *, gradient: bool = False
) -> float:
    """What code in ``dtype`` may differ from ``expected`` (float64).

    ``plain`` is the plain computation in ``dtype``; without it, e0 is taken as one rounding.
    """
    if dtype == torch.float64:
        return VALUE_FLOAT64 * max(1.0, largest(expected))
    u = torch.finfo(dtype).eps * largest(expected)
    e0 = u if plain is None else largest(plain.double() - expected)
    return 8.0 * e0 + 8.0 * u if gradient else 3.0 * e0 + 2.0 * u


def same_tolerance(dtype: torch.dtype, scale: float, *, factor: float = 1.0) -> float:
    """What two runs of the same code may differ by, on values of magnitude ``scale``."""
    if dtype == torch.float64:
        return SAME_FLOAT64 * max(1.0, scale) * factor
    return SAME_EPS * torch.finfo(dtype).eps * max(scale, 1e-3) * factor


def unfit(got: Tensor, *, floating: bool = True) -> str:
    """Why nothing can be compared with this tensor; empty where it can. ``floating``: must it be.

    A nested tensor has no shape to ask for, so this comes before any other question.
    """
    expected = f"expected a dense {'floating ' if floating else ''}tensor"
    if got.is_nested:
        return f"nested, {expected}"
    if got.layout is not torch.strided:
        return f"sparse ({got.layout}), {expected}"
    if got.is_meta:
        return f"on the device meta, {expected}"
    if floating and not got.is_floating_point():
        return f"of dtype {got.dtype}, {expected}"
    return ""


def need_tensor(what: str, got: object, given: str = "", *, floating: bool = True) -> Tensor:
    """``got`` as a dense tensor, or a mismatch that says what it is instead."""
    if not isinstance(got, Tensor):
        told = f"{what} is a {type(got).__name__}, expected a tensor"
        raise Mismatch(Seen(what=told, given=given))
    wrong = unfit(got, floating=floating)
    if wrong:
        raise Mismatch(Seen(what=f"{what} is {wrong}", given=given))
    return got


def need_shape(
    what: str, got: object, expected: tuple[int, ...], given: str = "", *, floating: bool = True
) -> Tensor:
    """``got`` as a tensor of this shape, or a mismatch that says what it is instead."""
    tensor = need_tensor(what, got, given, floating=floating)
    if tuple(tensor.shape) != tuple(expected):
        told = f"{what} has shape {tuple(tensor.shape)}, expected {tuple(expected)}"
        raise Mismatch(Seen(what=told, given=given))
    return tensor


def need_finite(what: str, got: Tensor, given: str = "") -> None:
    """Fail at the first NaN, then at the first infinity."""
    for kind, wrong in (("NaN", got.isnan()), ("infinite", got.isinf())):
        if bool(wrong.any()):
            index = tuple(int(x) for x in wrong.nonzero()[0])
            count = int(wrong.sum())
            raise Mismatch(
                Seen(
                    what=f"{what} is {kind} in {count} of {got.numel()} elements, first at {index}",
                    given=given,
                    index=index,
                )
            )


def compare(what: str, got: object, expected: Tensor, *, tolerance: float, given: str = "") -> None:
    """Fail unless ``got`` has the shape of ``expected``, is finite, and is within ``tolerance``.

    NaN in ``expected`` fails as well: what two calls of the same code give is often compared.
    """
    if bool(expected.isnan().any()):
        raise Mismatch(Seen(what=f"what {what} is compared with is NaN", given=given))
    floating = expected.is_floating_point()
    tensor = need_shape(what, got, tuple(expected.shape), given, floating=floating).detach()
    expected = expected.detach()
    need_finite(what, tensor, given)
    if not tensor.numel():
        return
    error = (tensor.double() - expected.double()).abs()
    worst = float(error.max())
    if worst > tolerance:
        place = int(error.argmax())
        index = tuple(int(x) for x in torch.unravel_index(torch.tensor(place), error.shape))
        many = int((error > tolerance).sum())
        raise Mismatch(
            Seen(
                what=f"{what} is wrong in {many} of {error.numel()} elements, worst below",
                given=given,
                index=index,
                got=float(tensor[index]),
                expected=float(expected[index]),
                tolerance=tolerance,
            )
        )


def compare_bits(what: str, got: Tensor, expected: Tensor, *, given: str = "") -> None:
    """Fail unless both are the same, to the last bit."""
    compare(what, got, expected, tolerance=0.0, given=given)
