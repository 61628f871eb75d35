"""Positions: what is counted, and what each kind makes of the count."""

import copy
import math

import pytest
import torch

from polyattn.errors import ConfigError, MaskError, ShapeError
from polyattn.layers.positions import Alibi, Count, Learned, Rotary, Sinusoidal
from polyattn.mask import Mask

CPU = torch.device("cpu")


def keep(*rows: str) -> torch.Tensor:
    """Padding drawn as text, # = real."""
    return torch.tensor([[slot == "#" for slot in row] for row in rows])


def counted(*masks: Mask, lengths: tuple[int, ...]) -> torch.Tensor:
    """The positions of chunks that follow each other, as (B, L)."""
    count, found = Count(), []
    for mask, length in zip(masks, lengths, strict=True):
        positions, count = count.take(mask, length, CPU)
        found.append(positions if positions.ndim == 2 else positions[None])
    batch = max(len(positions) for positions in found)
    return torch.cat([p.expand(batch, -1) for p in found], 1)


def test_without_a_mask_all_samples_share_the_slots():
    positions, count = Count(3).take(Mask(), 4, CPU)
    assert positions.tolist() == [3, 4, 5, 6]
    assert count.slots == 7


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (("..##", "####"), [[0, 0, 0, 1], [0, 1, 2, 3]]),
        (("##..", "####"), [[0, 1, 1, 1], [0, 1, 2, 3]]),
        (("#..#", "...."), [[0, 0, 0, 1], [0, 0, 0, 0]]),
    ],
    ids=["left", "right", "middle-and-none"],
)
def test_only_real_tokens_count(rows, expected):
    assert counted(Mask.padding(keep(*rows)), lengths=(4,)).tolist() == expected


def test_documents_restart():
    mask = Mask.documents([[2, 3], [4, 1]])
    assert counted(mask, lengths=(5,)).tolist() == [[0, 1, 0, 1, 2], [0, 1, 2, 3, 0]]


def test_a_segment_that_comes_back_goes_on_counting():
    mask = Mask.segments(torch.tensor([[7, 7, 2, 7, 2]]))
    assert counted(mask, lengths=(5,)).tolist() == [[0, 1, 0, 2, 1]]


def test_padding_does_not_count_inside_a_document():
    mask = Mask.documents([3, 3]) & Mask.padding(keep(".##.##"))
    assert counted(mask, lengths=(6,))[keep(".##.##")].tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize("cut", range(7))
@pytest.mark.parametrize("kind", ["padding", "segments", "both"])
def test_any_cut_counts_like_the_whole(kind, cut):
    real = keep("..####", "#.##.#")
    ids = torch.tensor([[1, 1, 1, 2, 2, 1], [3, 3, 0, 0, 3, 3]])
    use = {"padding": "p", "segments": "s", "both": "ps"}[kind]

    def part(start: int, stop: int) -> Mask:
        mask = Mask.padding(real[:, start:stop]) if "p" in use else Mask()
        return mask & Mask.segments(ids[:, start:stop]) if "s" in use else mask

    whole = counted(part(0, 6), lengths=(6,))
    assert torch.equal(counted(part(0, cut), part(cut, 6), lengths=(cut, 6 - cut)), whole)


def test_the_count_goes_on_where_padding_ends_or_begins():
    late = counted(Mask(), Mask.padding(keep(".#", "##")), lengths=(2, 2))
    assert late.tolist() == [[0, 1, 1, 2], [0, 1, 2, 3]]
    early = counted(Mask.padding(keep(".#", "##")), Mask(), lengths=(2, 2))
    assert early.tolist() == [[0, 0, 1, 2], [0, 1, 2, 3]]


def test_a_count_can_be_reordered_and_stays_as_it_was():
    _, count = Count().take(Mask.padding(keep(".##", "###")), 3, CPU)
    swapped = count.reorder(torch.tensor([1, 1, 0]))
    assert swapped.real.tolist() == [3, 3, 2]
    assert count.real.tolist() == [2, 3]
    assert count.nbytes == 16


def test_segments_in_some_chunks_only_are_refused():
    _, count = Count().take(Mask(), 2, CPU)
    with pytest.raises(MaskError, match=r"first 2 tokens.*Mask\.segments\(ids\) each time"):
        count.take(Mask.segments(torch.tensor([[0, 1]])), 2, CPU)


@pytest.mark.parametrize("width", [1, 2, 5, 8])
def test_sinusoidal_is_the_formula(width):
    table = Sinusoidal(width)(torch.arange(50))
    for p in (0, 1, 7, 49):
        for c in range(width):
            angle = p / 10_000 ** (2 * (c // 2) / width)
            expected = math.cos(angle) if c % 2 else math.sin(angle)
            assert table[p, c].item() == pytest.approx(expected, abs=1e-6)


def test_sinusoidal_takes_positions_of_each_sample():
    module = Sinusoidal(6)
    positions = torch.tensor([[0, 0, 1], [4, 5, 6]])
    assert torch.equal(module(positions)[1], module(positions[1]))


def test_learned_refuses_beyond_its_length_with_both_numbers():
    module = Learned(4, 8)
    assert module(torch.arange(4)).shape == (4, 8)
    with pytest.raises(ShapeError, match=r"at most 4 tokens, got 5"):
        module(torch.arange(5))
    with pytest.raises(ShapeError, match=r"at most 4 tokens, got 9"):
        module(torch.tensor([[0, 1], [8, 2]]))


def rotated(x: torch.Tensor, positions: torch.Tensor, base: float = 10_000.0) -> torch.Tensor:
    """Rotary positions as complex numbers in float64, one head and one token at a time."""
    half = x.shape[-1] // 2
    out = torch.empty_like(x, dtype=torch.float64)
    for b, h, i in torch.cartesian_prod(*(torch.arange(n) for n in x.shape[:3])).tolist():
        p = positions[b, i].item() if positions.ndim == 2 else positions[i].item()
        for c in range(half):
            plane = complex(x[b, h, i, c], x[b, h, i, c + half])
            angle = p * base ** (-2 * c / x.shape[-1])
            turned = plane * complex(math.cos(angle), math.sin(angle))
            out[b, h, i, c], out[b, h, i, c + half] = turned.real, turned.imag
    return out


@pytest.mark.parametrize("positions", [torch.arange(5), torch.tensor([[0, 0, 1, 2, 900]] * 2)])
def test_rotary_is_the_formula(positions):
    q = torch.randn(2, 3, 5, 8, dtype=torch.float64)
    k = torch.randn(2, 1, 5, 8, dtype=torch.float64)
    turned_q, turned_k = Rotary(8).turn(q, k, positions)
    torch.testing.assert_close(turned_q, rotated(q, positions), atol=1e-12, rtol=0)
    torch.testing.assert_close(turned_k, rotated(k, positions), atol=1e-12, rtol=0)


def test_rotary_scores_depend_on_the_distance_alone():
    torch.manual_seed(0)
    q, k = (torch.randn(2, 3, 1, 8, dtype=torch.float64) for _ in range(2))
    rotary = Rotary(8)

    def score(i: int, j: int) -> torch.Tensor:
        turned = rotary.turn(q, k, torch.tensor([i]))[0], rotary.turn(q, k, torch.tensor([j]))[1]
        return (turned[0] * turned[1]).sum(-1)

    for shift in (1, 7, 100, 4096, 100_000):
        torch.testing.assert_close(score(5 + shift, 2 + shift), score(5, 2), atol=1e-9, rtol=0)
    assert not torch.allclose(score(5, 2), score(2, 5))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rotary_tells_neighbours_apart_in_half_precision(dtype):
    rotary = Rotary(32).to(dtype)
    x = torch.ones(1, 1, 2, 32, dtype=dtype)
    turned, _ = rotary.turn(x, x, torch.tensor([1857, 1858]))
    assert turned.dtype == dtype
    exact = rotated(x, torch.tensor([1857, 1858]))
    torch.testing.assert_close(turned.double(), exact, atol=1e-2, rtol=0)
    assert (turned[..., 0, :] - turned[..., 1, :]).abs().max() > 0.3


def test_rotary_remembers_nothing():
    x = torch.randn(1, 1, 4, 8)
    rotary, short = Rotary(8), torch.arange(4)
    first = rotary.turn(x, x, short)[0]
    rotary.turn(x, x, short + 5)
    with torch.inference_mode():
        long = x.repeat(1, 1, 9, 1)
        rotary.turn(long, long, torch.arange(36))
    assert torch.equal(rotary.turn(x, x, short)[0], first)
    assert torch.equal(copy.deepcopy(rotary).turn(x, x, short)[0], first)
    assert not rotary.state_dict()


def test_rotary_wants_pairs_of_channels():
    with pytest.raises(ConfigError, match=r"even head width.*got 5"):
        Rotary(5)


@pytest.mark.parametrize("heads", [1, 3, 8, 12])
def test_alibi_adds_its_part_and_nothing_else(heads):
    mask = Alibi(heads).constrain(Mask.causal())
    assert mask.parts == {"causal", "alibi"}
    assert len(set(mask.slopes.tolist())) == heads
    first = 2.0 ** (-8 / heads) if heads in (1, 8) else None
    assert first is None or mask.slopes[0].item() == pytest.approx(first)


def test_alibi_slopes_keep_their_precision_and_no_place_in_a_checkpoint():
    module = Alibi(12)
    slopes = module.slopes.clone()
    module.to(torch.bfloat16)
    assert torch.equal(module.slopes, slopes)
    assert not module.state_dict()
    with torch.device("meta"):
        hollow = Alibi(12)
    assert torch.equal(hollow.to_empty(device="cpu").slopes, slopes)
