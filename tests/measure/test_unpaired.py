"""Two series of blocks without rounds in common: ratio, interval, and how often it is wrong."""

import importlib
import math
from pathlib import Path

import numpy as np
import pytest

from tfopt import UserError
from tfopt.measure.statistics import compare_unpaired

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
RANDOM = np.random.default_rng(0)


def blocks(level, count, noise=0.01):
    return [level * RANDOM.lognormal(0, noise, 30) for _ in range(count)]


def test_a_difference_is_found_whatever_the_numbers_of_blocks():
    slower = compare_unpaired(blocks(10, 4), blocks(12, 9))
    assert slower.verdict == "slower"
    assert slower.low < 1.2 < slower.high
    assert slower.ratio == pytest.approx(1.2, rel=0.01)
    assert slower.rounds == 4


def test_the_same_input_gives_the_same_interval_and_swapping_turns_it_round():
    reference, variant = blocks(10, 6), blocks(11, 7)
    there, back = compare_unpaired(reference, variant), compare_unpaired(variant, reference)
    assert there == compare_unpaired(reference, variant)
    assert there.ratio == pytest.approx(1 / back.ratio)
    assert there.low == pytest.approx(1 / back.high, rel=0.002)


def test_the_order_of_the_blocks_is_nothing():
    """There are no rounds: what moved both sides alike is spread, not a pair's."""
    levels = [10, 11, 12, 13, 14]
    rising = [block for level in levels for block in blocks(level, 1)]
    straight = compare_unpaired(rising, rising)
    crossed = compare_unpaired(rising, rising[::-1])
    assert straight.half_width == pytest.approx(crossed.half_width, rel=0.1)
    assert straight.half_width > 0.1


@pytest.mark.parametrize(
    ("counts", "noise", "most"),
    [
        ((5, 5), (0.03, 0.03), 0.98),
        ((12, 6), (0.01, 0.03), 0.98),
        # So few that Welch's would promise too much: wider than need be.
        ((3, 12), (0.03, 0.03), 1.0),
        ((2, 12), (0.03, 0.01), 1.0),
    ],
)
def test_the_interval_is_welchs(counts, noise, most):
    """Without noise inside the blocks this is the textbook's, also for unequal sides."""
    random = np.random.default_rng(3)
    held, trials = 0, 500
    for _ in range(trials):
        sides = [
            [[x] for x in random.lognormal(0, spread, count)]
            for count, spread in zip(counts, noise, strict=True)
        ]
        comparison = compare_unpaired(*sides)
        held += comparison.low <= 1 <= comparison.high
    assert 0.925 <= held / trials <= most


def test_a_long_window_in_a_short_block_hardly_widens_the_interval():
    """Of five windows one is the median of every seventeenth draw."""
    reference, variant = (
        [level * RANDOM.lognormal(0, 0.002, 5) for _ in range(5)] for level in (10, 10.5)
    )
    still = compare_unpaired(reference, variant)
    for block in variant:
        block[-1] = 30
    stretched = compare_unpaired(reference, variant)
    assert stretched.ratio == pytest.approx(still.ratio, abs=0.003)
    assert stretched.half_width < 0.01


def test_blocks_that_agree_by_chance_are_no_surer_than_their_windows():
    noisy = [9.0, 9.5, 10.0, 10.5, 11.0]
    assert compare_unpaired([noisy] * 6, [noisy] * 6).half_width > 0.02


def test_blocks_that_do_not_vary_at_all_give_an_interval_of_a_point():
    same = compare_unpaired([[2.0]] * 3, [[3.0]] * 4)
    assert (same.low, same.high) == (pytest.approx(1.5), pytest.approx(1.5))


@pytest.mark.parametrize(
    ("reference", "variant", "received"),
    [
        ([[1.0]], [[1.0]] * 4, "a series of 1"),
        ([[1.0]] * 3, [], "a series of 0"),
        ([[1.0], []], [[1.0], [1.0]], "without windows"),
        ([[1.0], [0.0]], [[1.0], [1.0]], "not positive"),
        ([[1.0], [1.0]], [[1.0], [math.nan]], "not positive"),
    ],
)
def test_blocks_that_cannot_be_compared_are_refused(reference, variant, received):
    with pytest.raises(UserError, match="cannot be compared") as caught:
        compare_unpaired(reference, variant)
    assert received in caught.value.received


@pytest.fixture
def calibration(monkeypatch):
    """The committed benchmark; its neighbours are found as when it is run."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("gate_calibration")


@pytest.mark.parametrize("counts", [(5, 5), (10, 12)])
def test_at_most_one_verdict_of_twenty_is_false(calibration, counts):
    found = calibration.calibrated(150, counts, seed=0)
    same, at_limit, beyond = (found[f"slower_by_{share}"] for share in ("0", "0.03", "0.05"))
    assert same["verdicts"].get("faster", 0) + same["verdicts"].get("slower", 0) <= 0.05
    assert same["gate"].get("regression", 0) == 0
    assert at_limit["gate"].get("regression", 0) + at_limit["gate"].get("pass", 0) <= 0.05
    assert beyond["gate"].get("pass", 0) == 0


def test_what_moves_a_whole_measurement_is_not_in_the_interval(calibration):
    """The documentation says so; an interval that held it would be another one."""
    still = calibration.trials(100, 0.0, (20, 20), seed=0)
    moved = calibration.trials(100, 0.0, (20, 20), seed=0, shift=0.03)

    def missed(done):
        return sum(not each.low <= 1 <= each.high for each in done)

    assert missed(still) <= 10
    assert missed(moved) > 25
    assert np.median([e.half_width for e in moved]) == pytest.approx(
        np.median([e.half_width for e in still]), rel=0.2
    )
