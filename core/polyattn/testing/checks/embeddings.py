"""I. Positions that are vectors, to be added to the embeddings."""

from __future__ import annotations

import functools

import torch

from polyattn.errors import PolyattnError
from polyattn.testing.results import Mismatch, Seen, proves
from polyattn.testing.subjects.positions import WIDTH, Embedding
from polyattn.testing.subjects.sequence import blaming
from polyattn.testing.tools.numerics import compare, compare_bits, largest, need_finite
from polyattn.testing.tools.raising import must_raise


@proves(
    "A vector for each position: (L,) gives (L, E), (B, L) gives (B, L, E), whatever E and L.",
    causes=(
        "sines for half the width only, which an odd width leaves short",
        "positions flattened, or one sample's used for all",
    ),
)
def check_position_shapes(subject: Embedding, width: int) -> None:
    for positions in (torch.arange(5), torch.tensor([[0, 0, 1], [4, 5, 6]]), torch.arange(0)):
        given = f"positions {tuple(positions.shape)}, width {width}"
        got = subject.vectors(positions, given, width=width)
        expected = (*positions.shape, width)
        if got.shape != expected:
            what = f"the vectors have shape {tuple(got.shape)}, expected {expected}"
            raise Mismatch(Seen(what=what, given=given))
        need_finite("the vectors", got, given)


@proves(
    "A position has one vector: by itself, in a longer sequence, in a batch, after other calls.",
    causes=(
        "a table that is kept and cut to the first call's length",
        "a position taken from the slot in place of the argument",
        "a normalisation over the sequence",
    ),
)
def check_position_has_one_vector(subject: Embedding) -> None:
    module = subject.made()
    most = min(subject.max_length or 40, 40)
    whole = torch.arange(most)
    own = torch.stack([whole[:4], whole[-4:].flip(0)])
    with blaming(f"positions 0 to {most - 1}"), torch.no_grad():
        first = module(whole[:3])
        table = module(whole)
        found = {
            "the first positions, after a longer call": (module(whole[:3]), first),
            "the first positions of a longer call": (table[:3], first),
            "positions from 2 on": (module(whole[2:]), table[2:]),
            "positions of each sample": (module(own), table[own]),
        }
    for told, (got, want) in found.items():
        compare_bits(told, got, want)


@proves(
    "Neighbours have different vectors, in modules of half precision and under autocast too.",
    causes=(
        "positions in a half type: in bfloat16, 300 and 301 are one number",
        "a table or frequencies that are cast with the module",
        "a table that begins again",
    ),
)
def check_position_tells_neighbours_apart(subject: Embedding, case: str) -> None:
    """``case``: "float32", "bfloat16", "float16" (the module's) or "autocast"."""
    dtype = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(case, torch.float32)
    limit = subject.max_length
    at = 300 if limit is None else limit - 2
    positions = torch.tensor([at, at + 1])
    given = f"positions {at} and {at + 1}, {case}"
    exact = subject.vectors(positions, "float64, " + given, dtype=torch.float64)
    with torch.autocast("cpu", torch.bfloat16, enabled=case == "autocast"):
        got = subject.vectors(positions, given, dtype=dtype)
    compare("the vectors", got, exact, tolerance=2e-2 * largest(exact), given=given)
    apart = largest(got[0] - got[1])
    if apart < 0.3 * largest(exact[0] - exact[1]) or not apart:
        raise Mismatch(
            Seen(what=f"two neighbours have one vector, within {apart:.1e}", given=given)
        )


@proves(
    "Beyond its length it refuses, in so many words; without a limit it goes on.",
    causes=(
        "an index that is clamped, or taken modulo the length",
        "a gather whose error says nothing of lengths",
        "a table of a fixed length where no limit is claimed",
    ),
    claim="max_length",
)
def check_position_limit(subject: Embedding) -> None:
    limit = subject.max_length
    if limit is None:
        far = subject.vectors(torch.tensor([3, 100_000, 100_003]), "position 100 000")
        need_finite("the vector of position 100 000", far)
        if torch.equal(far[0], far[2]) or torch.equal(far[1], far[2]):
            raise Mismatch(Seen(what="positions 3, 100 000 and 100 003 share a vector"))
        return
    subject.vectors(torch.arange(limit), f"positions 0 to {limit - 1}")
    module = subject.made()
    for positions in (torch.arange(limit + 1), torch.tensor([[0, 1], [2 * limit, 2]])):
        longest = int(positions.max())
        given = f"position {longest}, where {limit} is the limit"
        error = must_raise(
            functools.partial(module, positions),
            PolyattnError,
            ValueError,
            asked="a position beyond the limit",
            expected="a ValueError that says what fits",
            given=given,
        )
        if not (str(limit) in str(error) and str(longest + 1) in str(error)):
            what = f"it names not both of {limit} and {longest + 1}: {error}"
            raise Mismatch(Seen(what=what, given=given)) from error


@proves(
    "The channels are sines and cosines in turn, of the angles of the formula.",
    causes=(
        "an exponent over half the width, or that counts channels in place of pairs",
        "all sines first and then all cosines",
        "angles in a narrow dtype",
    ),
    claim="waves",
)
def check_position_waves(subject: Embedding, width: int) -> None:
    assert subject.waves is not None, "only what claims waves is compared with them"
    positions = torch.tensor([0, 1, 7, 49, 5000])
    given = f"positions {positions.tolist()}, width {width}, base {subject.waves:g}"
    got = subject.vectors(positions, given, width=width)
    for channel in range(width):
        angle = positions.double() * subject.waves ** (-2 * (channel // 2) / width)
        want = angle.cos() if channel % 2 else angle.sin()
        compare(f"channel {channel}", got[:, channel], want, tolerance=1e-6, given=given)


@proves(
    "Two vectors multiplied depend on the distance of their positions alone.",
    causes=("a sine without its cosine", "a scale that grows with the position"),
    claim="relative",
)
def check_position_is_relative(subject: Embedding) -> None:
    pairs = [(2, 5), (0, 9), (4, 4)]
    for shift in (1, 7, 100, 4096):
        for i, j in pairs:
            at = torch.tensor([i, j, i + shift, j + shift])
            given = f"positions {at.tolist()}, width {WIDTH}"
            one, two, far_one, far_two = subject.vectors(at, given).double()
            told = f"the product of {i + shift} and {j + shift}, against that of {i} and {j}"
            compare(told, far_one @ far_two, one @ two, tolerance=1e-5, given=given)
