"""I. Positions that turn queries and keys."""

from __future__ import annotations

import torch
from torch import Tensor

from polyattn.testing.results import Mismatch, Seen, proves
from polyattn.testing.subjects.positions import HEADS, WIDTH, Rotation
from polyattn.testing.tools.cases import normal
from polyattn.testing.tools.numerics import compare, compare_bits, largest, same_tolerance

SHIFTS = (1, 7, 100, 4096)


def _drawn(length: int, *, batch: int = 2, seed: int = 0) -> Tensor:
    return normal(batch, HEADS, length, WIDTH, seed=seed)


@proves(
    "A query and a key score by their distance alone: moved together they score the same, and "
    "another distance another score.",
    causes=(
        "queries and keys that are turned unlike, or in opposite directions",
        "cosines and sines swapped, so that nothing is a rotation",
        "angles in float32 or narrower, which are wrong by far positions",
        "a table that ends, or begins again",
    ),
)
def check_rope_is_relative(subject: Rotation, shift: int) -> None:
    query, key = _drawn(1), _drawn(1, seed=1)

    def score(i: int, j: int) -> Tensor:
        given = f"a query at {i}, a key at {j}"
        turned = subject.turn(query, torch.tensor([i]), given)
        return (turned * subject.turn(key, torch.tensor([j]), given, keys=True)).sum(-1)

    for i, j in ((5, 2), (2, 5), (3, 3)):
        told = f"the score of {i + shift} and {j + shift}, against that of {i} and {j}"
        # Angles are products of positions below 5 000, each with a rounding.
        compare(told, score(i + shift, j + shift), score(i, j), tolerance=1e-9)
    apart = largest(score(5, 2) - score(2, 5))
    if apart < 1e-3:
        what = f"a key 3 before its query scores like one 3 after it, within {apart:.1e}"
        raise Mismatch(Seen(what=what))


@proves(
    "Turning keeps lengths: each query and key has the norm that it had, in each plane.",
    causes=(
        "a cosine or sine of another angle",
        "a scale that is left in",
        "sums in place of differences",
    ),
)
def check_rope_keeps_norms(subject: Rotation, dtype: torch.dtype) -> None:
    x = _drawn(6).to(dtype)
    positions = torch.tensor([0, 1, 2, 300, 5000, 100_000])
    given = f"positions {positions.tolist()}, {dtype}"
    for keys in (False, True):
        turned = subject.turn(x, positions, given, keys=keys, half=True)
        if turned.dtype != dtype:
            raise Mismatch(Seen(what=f"it gives {turned.dtype}, expected {dtype}", given=given))
        before, after = (y.double().norm(dim=-1) for y in (x, turned))
        tolerance = same_tolerance(dtype, largest(before))
        compare("the norm", after, before, tolerance=tolerance, given=given)


@proves(
    "At position 0 nothing is turned.",
    causes=("positions counted from one", "an offset that is always added"),
)
def check_rope_position_zero(subject: Rotation) -> None:
    x = _drawn(4)
    given = "four tokens at position 0"
    for keys in (False, True):
        turned = subject.turn(x, torch.zeros(4, dtype=torch.long), given, keys=keys)
        compare("what was turned", turned, x, tolerance=1e-15, given=given)


@proves(
    "The planes are the channels that are named, each turned by its own angle.",
    causes=(
        "channels paired the other way: halves for neighbours",
        "an exponent over half the width, or with the base of another model",
        "the sign of the sine: turned backwards",
    ),
    claim="pairing",
)
def check_rope_pairing(subject: Rotation, width: int) -> None:
    x = normal(2, HEADS, 5, width, seed=2)
    positions = torch.tensor([[0, 1, 2, 9, 900], [4, 4, 0, 1, 70]])
    given = f"head width {width}, positions (B, L), pairing {subject.pairing}"
    for keys in (False, True):
        turned = subject.turn(x, positions, given, keys=keys)
        compare(
            "what was turned", turned, _formula(subject, x, positions), tolerance=1e-9, given=given
        )


def _formula(subject: Rotation, x: Tensor, positions: Tensor) -> Tensor:
    """Plane by plane, as complex numbers in float64."""
    width = _turned(subject, x.shape[-1])
    out = x.double().clone()
    for plane in range(width // 2):
        pair = (plane, plane + width // 2)
        if subject.pairing == "neighbours":
            pair = (2 * plane, 2 * plane + 1)
        angle = positions.double() * subject.base ** (-2 * plane / width)
        turn = torch.polar(torch.ones_like(angle), angle)[:, None]
        turned = torch.complex(*(x.double()[..., channel] for channel in pair)) * turn
        out[..., pair[0]], out[..., pair[1]] = turned.real, turned.imag
    return out


def _turned(subject: Rotation, width: int) -> int:
    return int(width * subject.share)


@proves(
    "Channels that are not turned are handed on to the bit.",
    causes=(
        "the whole head turned",
        "the first channels left and the last turned",
        "a cast on the way",
    ),
    claim="share",
)
def check_rope_partial(subject: Rotation, dtype: torch.dtype) -> None:
    x = _drawn(4).to(dtype)
    rest = _turned(subject, WIDTH)
    given = f"head width {WIDTH}, of which {rest} turn, {dtype}"
    for keys in (False, True):
        turned = subject.turn(x, torch.tensor([3, 4, 5, 6]), given, keys=keys)
        compare_bits(
            "the channels that do not turn", turned[..., rest:], x[..., rest:], given=given
        )
        if torch.equal(turned[..., :rest], x[..., :rest]):
            raise Mismatch(Seen(what="the channels that turn are as they were", given=given))


@proves(
    "In half precision, in modules of half precision and under autocast the angles are those of "
    "float32 at least: neighbours stay apart at any position.",
    causes=(
        "a table of cosines or inverse frequencies that is cast with the module",
        "positions in a half type: in bfloat16, 300 and 301 are one number",
        "a product that autocast takes in its own dtype",
    ),
)
def check_rope_keeps_precision(subject: Rotation, case: str, at: int) -> None:
    """``case``: "bfloat16", "float16" (x and the module) or "autocast" (of float32)."""
    dtype = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(case, torch.float32)
    x = torch.ones(1, 1, 2, WIDTH, dtype=dtype)
    positions = torch.tensor([at, at + 1])
    given = f"positions {at} and {at + 1}, {case}"
    exact = subject.turn(x.double(), positions, "float64, " + given)
    with torch.autocast("cpu", torch.bfloat16, enabled=case == "autocast"):
        turned = subject.turn(x, positions, given, half=True)
    # float32 angles at 100 000 are off by 4e-3, and half types round what is turned.
    compare("what was turned", turned, exact, tolerance=2e-2, given=given)
    apart = largest(turned[..., 0, :] - turned[..., 1, :])
    if apart < 0.3:
        what = f"neighbours are turned alike, within {apart:.2g}"
        raise Mismatch(Seen(what=what, given=given))


@proves(
    "A token is turned by the position it is given, whatever came before and beside it: offsets, "
    "positions of each sample, short calls after long ones.",
    causes=(
        "a table that is kept and not asked for its length, or cut to the first call's",
        "a position taken from the slot in place of the argument",
        "positions of the first sample used for all",
    ),
)
def check_rope_follows_positions(subject: Rotation) -> None:
    x = _drawn(12)
    module = subject.build(WIDTH)
    whole = torch.arange(12)

    def turned(x: Tensor, positions: Tensor) -> Tensor:
        return module.turn(x, x, positions)[0]

    first = turned(x[:, :, :4], whole[:4])
    long = turned(x, whole)
    compare_bits("four tokens, after a longer call", turned(x[:, :, :4], whole[:4]), first)
    compare_bits("the first four of twelve tokens", long[:, :, :4], first)
    compare_bits("tokens from position 5 on", turned(x[:, :, 5:], whole[5:]), long[:, :, 5:])
    own = torch.stack([whole, whole.flip(0) + 100])
    both = turned(x, own)
    for b in range(2):
        told = f"sample {b} with positions of its own, (B, L)"
        compare_bits(told, both[b], turned(x[b : b + 1], own[b])[0])
