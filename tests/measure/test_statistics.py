"""Ratio, interval and verdict of two series of blocks, and how often they are wrong."""

import math

import numpy as np
import pytest

from tfopt.measure.statistics import compare, compare_unpaired
from tfopt.report.footprint import Comparison

RANDOM = np.random.default_rng(0)
BOTH = pytest.mark.parametrize("compared", [compare, compare_unpaired])


def blocks(level, count=8, noise=0.01, windows=30):
    return [level * RANDOM.lognormal(0, noise, windows) for _ in range(count)]


@BOTH
def test_a_clear_difference_is_found_with_its_size(compared):
    slower = compared(blocks(10), blocks(12))
    assert slower.verdict == "slower"
    assert slower.low < 1.2 < slower.high
    assert slower.ratio == pytest.approx(1.2, rel=0.01)
    faster = compared(blocks(10), blocks(5))
    assert (faster.verdict, faster.rounds) == ("faster", 8)


@BOTH
def test_the_same_input_gives_the_same_interval_and_swapping_turns_it_round(compared):
    reference, variant = blocks(10), blocks(11)
    there, back = compared(reference, variant), compared(variant, reference)
    assert there == compared(reference, variant) != compared(reference, variant, seed=1)
    assert there.ratio == pytest.approx(1 / back.ratio)
    assert there.low == pytest.approx(1 / back.high, rel=0.002)


def test_a_machine_that_grows_slower_does_not_widen_a_matched_interval():
    reference, variant = blocks(10), blocks(10.5)
    factors = np.linspace(1, 2, 8)
    still = compare(reference, variant)
    moving = compare(
        [f * block for f, block in zip(factors, reference, strict=True)],
        [f * block for f, block in zip(factors, variant, strict=True)],
    )
    assert moving.ratio == pytest.approx(still.ratio)
    assert moving.half_width == pytest.approx(still.half_width, rel=1e-6)


def test_stretched_windows_do_not_move_the_ratio():
    reference, variant = blocks(10), blocks(10)
    for block in variant:
        block[:3] *= 5
    assert compare(reference, variant).ratio == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.8, 0.99, "faster"),
        (1.01, 1.2, "slower"),
        (0.985, 1.015, "no difference"),
        # Surely different, and surely too little to matter.
        (1.001, 1.015, "no difference"),
        (0.97, 1.01, "inconclusive"),
        (0.99, 1.03, "inconclusive"),
    ],
)
def test_the_verdict_is_what_the_interval_allows(low, high, verdict):
    assert Comparison(math.sqrt(low * high), low, high, 5).verdict == verdict


@pytest.mark.parametrize(
    ("compared", "counts", "noise", "most"),
    [
        (compare, (5, 5), (0.03, 0.03), 0.98),
        (compare_unpaired, (5, 5), (0.03, 0.03), 0.98),
        (compare_unpaired, (12, 6), (0.01, 0.03), 0.98),
        # So few that Welch's would promise too much: wider than need be.
        (compare_unpaired, (3, 12), (0.03, 0.03), 1.0),
        (compare_unpaired, (2, 12), (0.03, 0.01), 1.0),
    ],
)
def test_the_interval_is_the_textbooks(compared, counts, noise, most):
    """Without noise inside the blocks: Student's for pairs, Welch's for series."""
    random = np.random.default_rng(3)
    held, trials = 0, 200
    for _ in range(trials):
        sides = [
            [[x] for x in random.lognormal(0, spread, count)]
            for count, spread in zip(counts, noise, strict=True)
        ]
        comparison = compared(*sides)
        held += comparison.low <= 1 <= comparison.high
    assert 0.92 <= held / trials <= most


# Series without rounds in common.


def test_the_order_of_unpaired_blocks_is_nothing():
    """There are no rounds: what moved both sides alike is spread, not a pair's."""
    rising = [block for level in (10, 11, 12, 13, 14) for block in blocks(level, 1)]
    straight = compare_unpaired(rising, rising)
    crossed = compare_unpaired(rising, rising[::-1])
    assert straight.half_width == pytest.approx(crossed.half_width, rel=0.1)
    assert straight.half_width > 0.1
    assert compare_unpaired(blocks(10, 4), blocks(12, 9)).rounds == 4


def test_a_long_window_in_a_short_block_hardly_widens_the_interval():
    """Of five windows one is the median of every seventeenth draw."""
    reference, variant = (blocks(level, 5, 0.002, windows=5) for level in (10, 10.5))
    still = compare_unpaired(reference, variant)
    for block in variant:
        block[-1] = 30
    stretched = compare_unpaired(reference, variant)
    assert stretched.ratio == pytest.approx(still.ratio, abs=0.003)
    assert stretched.half_width < 0.01


def test_blocks_that_agree_by_chance_are_no_surer_than_their_windows():
    noisy = [9.0, 9.5, 10.0, 10.5, 11.0]
    assert compare_unpaired([noisy] * 6, [noisy] * 6).half_width > 0.02
    same = compare_unpaired([[2.0]] * 3, [[3.0]] * 4)
    assert same.ratio == pytest.approx(1.5)
    assert same.low < same.ratio < same.high
    assert same.half_width < 0.002


# How often the verdicts are wrong: the committed benchmarks, with fewer trials of fixed seeds.


@pytest.mark.slow
def test_a_program_differs_from_itself_in_at_most_one_trial_of_twenty(benchmark_module):
    same = benchmark_module("calibration").verdicts(200, 0.0, seed=0)
    false = sum(same["verdicts"].get(verdict, 0) for verdict in ("faster", "slower"))
    assert false <= 0.05
    assert same["intervals_that_hold_the_truth"] >= 0.95


def test_a_slowdown_of_five_percent_is_found(benchmark_module):
    slower = benchmark_module("calibration").verdicts(40, 0.05, seed=1)
    assert slower["verdicts"]["slower"] >= 0.9
    assert slower["intervals_that_hold_the_truth"] >= 0.94


@pytest.mark.slow
def test_at_most_one_gate_of_twenty_is_false(benchmark_module):
    found = benchmark_module("gate_calibration").calibrated(120, (10, 12), seed=0)
    same, at_limit, beyond = (found[f"slower_by_{share}"] for share in ("0", "0.03", "0.05"))
    assert same["verdicts"].get("faster", 0) + same["verdicts"].get("slower", 0) <= 0.05
    assert same["gate"].get("regression", 0) == 0
    assert at_limit["gate"].get("regression", 0) + at_limit["gate"].get("pass", 0) <= 0.05
    assert beyond["gate"].get("pass", 0) == 0
