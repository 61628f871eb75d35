"""The logic of timing, with clocks that say what the test wants: no test here measures anything."""

import gc

import pytest

from polyattn.measure import clock
from polyattn.measure.clock import Times


class FakeClock:
    """Time passes only when a candidate says so."""

    def __init__(self):
        self.now = 0
        self.busy = 0

    def wall(self):
        return self.now

    def processor(self):
        return self.busy

    def work(self, wall, processor=None):
        self.now += round(wall * 1e9)
        self.busy += round((wall if processor is None else processor) * 1e9)


def worker(fake, seconds, calls=None, name=""):
    def run():
        fake.work(next(seconds) if hasattr(seconds, "__next__") else seconds)
        if calls is not None:
            calls.append(name)

    return run


def test_a_planted_slowdown_is_seen_as_its_ratio():
    fake = FakeClock()
    candidates = {"base": worker(fake, 0.010), "slow": worker(fake, 0.015)}
    times = clock.interleave(candidates, seconds=0.5, clock=fake)
    assert clock.ratio(times["slow"], times["base"], "processor") == pytest.approx(1.5)
    assert clock.ratio(times["base"], times["slow"], "wall") == pytest.approx(1 / 1.5)


def test_a_ratio_of_minima_ignores_disturbances():
    fake = FakeClock()
    disturbed = iter([0.010, 0.010, 0.500, 0.010, 0.300, 0.010, 0.020])
    candidates = {"base": worker(fake, 0.010), "other": worker(fake, disturbed)}
    times = clock.interleave(candidates, seconds=0, least=6, clock=fake)
    assert clock.ratio(times["other"], times["base"], "processor") == pytest.approx(1)


def test_everybody_takes_turns_and_nobody_always_starts():
    fake, calls = FakeClock(), []
    candidates = {name: worker(fake, 0.001, calls, name) for name in "abc"}
    clock.interleave(candidates, seconds=0, least=3, warm=True, clock=fake)
    assert "".join(calls) == "abc" + "bca" + "cab"


def test_a_cold_candidate_runs_once_before_it_is_timed():
    fake = FakeClock()
    times = clock.interleave(
        {"first": worker(fake, iter([9.0, 0.1, 0.1, 0.1]))}, seconds=0, clock=fake
    )
    assert times["first"].wall == pytest.approx([0.1, 0.1, 0.1])


@pytest.mark.parametrize(("seconds", "rounds"), [(0.0, 3), (0.8, 8), (100.0, 10)])
def test_rounds_end_with_the_time_but_within_their_bounds(seconds, rounds):
    fake, heard = FakeClock(), []
    times = clock.interleave(
        {"a": worker(fake, 0.1)}, seconds=seconds, most=10, clock=fake, tick=heard.append
    )
    assert len(times["a"].wall) == rounds
    assert heard == list(range(1, rounds + 1))


def test_processor_time_is_kept_apart_from_wall_time():
    fake = FakeClock()
    times = clock.interleave({"a": lambda: fake.work(0.5, 0.1)}, seconds=0, clock=fake)
    assert times["a"].best("wall") == pytest.approx(0.5)
    assert times["a"].best("processor") == pytest.approx(0.1)
    assert times["a"].median("processor") == pytest.approx(0.1)


def test_freeing_the_result_is_not_timed():
    fake = FakeClock()

    class Heavy:
        def __del__(self):
            fake.work(1.0)

    def run():
        fake.work(0.1)
        return Heavy()

    times = clock.interleave({"a": run}, seconds=0, clock=fake)
    assert times["a"].wall == pytest.approx([0.1, 0.1, 0.1])


def test_collection_of_garbage_is_off_while_timing_and_on_again_after_an_error():
    seen = []

    def run():
        seen.append(gc.isenabled())
        raise RuntimeError("planted")

    assert gc.isenabled()
    with pytest.raises(RuntimeError, match="planted"):
        clock.interleave({"a": run}, seconds=0, warm=True)
    assert seen == [False]
    assert gc.isenabled()


def times_of(*seconds):
    return Times(wall=list(seconds), processor=list(seconds))


def test_the_noise_is_what_the_base_differs_from_itself():
    base, again = times_of(1.0, 1.0, 1.0, 1.0), times_of(1.1, 1.1, 1.1, 1.1)
    assert clock.noise(base, again, "processor") == pytest.approx(0.1)
    # Equal minima, and yet most pairs differ by a fifth.
    again = times_of(1.0, 1.2, 1.2, 1.2)
    assert clock.noise(base, again, "processor") == pytest.approx(0.2)


def test_single_disturbed_rounds_are_no_noise_where_there_are_many():
    base, again = times_of(*[1.0, 1.5] * 25), times_of(*[1.5, 1.0] * 25)
    assert clock.noise(base, again, "processor") == pytest.approx(0.01)
    # A part of the run that was slower throughout is seen only if most parts were.
    again = times_of(*[1.0] * 10, *[1.2] * 40)
    assert clock.noise(base, again, "processor") == pytest.approx(0.2)


def test_the_noise_never_falls_below_one_per_cent():
    base = times_of(1.0, 1.0)
    assert clock.noise(base, base, "wall") == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("quotient", "tie"),
    [(1.0, True), (1.049, True), (1 / 1.049, True), (1.06, False), (0.94, False)],
)
def test_a_tie_lies_within_the_noise_on_both_sides(quotient, tie):
    assert clock.is_tie(quotient, 0.05) is tie


def test_a_run_is_void_when_its_yardstick_moves():
    steady = [1.0, 1.2, 1.0, 1.3, 1.0, 1.1]
    assert clock.drift(steady) == pytest.approx(1.0)
    assert not clock.is_void(steady)
    slower = [1.0, 1.0, 1.0, 1.3, 1.3, 1.3]
    assert clock.drift(slower) == pytest.approx(1.3)
    assert clock.is_void(slower)
    assert clock.is_void(slower[::-1])
    assert not clock.is_void([1.0, 1.0, 1.25, 1.25])


def test_halves_need_two_samples():
    with pytest.raises(ValueError, match="two samples"):
        clock.drift([1.0])


def test_growth_is_the_exponent():
    sizes = [16384, 32768, 65536]
    assert clock.growth(sizes, [s**1.5 for s in sizes]) == pytest.approx(1.5)
    with pytest.raises(ValueError, match="two or more"):
        clock.growth([1], [1.0])


@pytest.mark.parametrize(("exponent", "void"), [(1.0, False), (0.85, True), (1.2, True)])
def test_growth_is_void_where_a_copy_is_not_linear(exponent, void):
    assert clock.growth_is_void(exponent) is void
