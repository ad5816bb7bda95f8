"""Ratio, interval and verdict of two sides of processes, and how often the interval is right."""

import math

import numpy as np
import pytest
from bench_reports import half_width
from scipy import stats

from tfopt.report.statistics import (
    Comparison,
    compare,
    compare_apart,
    compare_crossed,
    compare_pairs,
    students_t,
)

ALL = pytest.mark.parametrize("compared", [compare, compare_pairs, compare_apart])


def around(level, count=5, noise=0.01, seed=0):
    return list(level * np.random.default_rng(seed).lognormal(0, noise, count))


@ALL
def test_a_difference_is_found_with_its_size_and_swapped_it_turns_round(compared):
    reference, variant = around(10), around(12, seed=1)
    found = compared(reference, variant)
    assert (found.verdict, found.processes) == ("slower", 5)
    assert found.ratio == pytest.approx(1.2, rel=0.02)
    back = compared(variant, reference)
    assert back.verdict == "faster"
    assert found.ratio == pytest.approx(1 / back.ratio)
    assert found.low == pytest.approx(1 / back.high)


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
        (compare, (2, 2), (0.03, 0.03), 0.97),
        (compare, (5, 3), (0.03, 0.03), 0.97),
        (compare_pairs, (3, 3), (0.03, 0.03), 0.97),
        (compare_apart, (12, 6), (0.01, 0.03), 0.97),
        # So few that Welch's would promise too much: wider than need be.
        (compare_apart, (2, 12), (0.03, 0.01), 1.0),
    ],
)
def test_the_interval_holds_the_truth_in_nineteen_of_twenty(compared, counts, noise, most):
    random = np.random.default_rng(3)
    held, trials = 0, 1000
    for _ in range(trials):
        reference, variant = (
            list(random.lognormal(0, spread, count))
            for count, spread in zip(counts, noise, strict=True)
        )
        found = compared(reference, [0.7 * value for value in variant])
        held += found.low <= 0.7 <= found.high
    assert 0.93 <= held / trials <= most


@pytest.mark.parametrize("counts", [(2, 2), (5, 5), (5, 3)])
def test_processes_share_one_scatter_with_the_degrees_of_both_sides(counts):
    logs = [np.log(around(10, count, seed=n)) for n, count in enumerate(counts)]
    found = compare(*(list(np.exp(side)) for side in logs))
    textbook = stats.ttest_ind(logs[1], logs[0], equal_var=True).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx(np.exp([textbook.low, textbook.high]), rel=1e-9)
    welch = stats.ttest_ind(logs[1], logs[0], equal_var=False).confidence_interval(0.95)
    apart = compare_apart(*(list(np.exp(side)) for side in logs))
    if counts[0] == counts[1]:
        assert apart.high == pytest.approx(math.exp(welch.high))
    else:
        assert apart.high > math.exp(welch.high)  # wider than need be


def test_pairs_leave_out_what_both_had_and_no_order_matters_to_the_others():
    slower = np.linspace(1, 3, 5)
    reference, variant = slower * around(10), slower * around(10.5, seed=1)
    assert half_width(compare_pairs(list(reference), list(variant))) < 0.02
    straight = compare(list(reference), list(variant))
    crossed = compare(list(reference), list(variant)[::-1])
    assert straight == crossed
    assert half_width(straight) > 0.3


@ALL
def test_no_interval_is_narrower_than_clocks_are(compared):
    found = compared([2.0] * 3, [3.0] * 3)
    assert found.ratio == pytest.approx(1.5)
    assert 1.4975 < found.low < 1.5 < found.high < 1.5025


def test_processes_and_seeds_are_both_in_the_interval():
    random = np.random.default_rng(5)

    def side(processes, seeds):
        own = [1 + processes * random.normal() for _ in range(5)]
        shared = [1 + seeds * random.normal() for _ in range(3)]
        return [[one * other for other in shared] for one in own]

    held = 0
    for _ in range(500):
        found = compare_crossed(side(0.02, 0.02), side(0.02, 0.02))
        held += found.low <= 1 <= found.high
    assert 0.92 <= held / 500 <= 0.98
    held = 0
    for _ in range(500):
        factors = np.exp(0.1 * random.normal(size=(2, 3)))
        times = [np.exp(np.log(own).mean()) * np.array(side(0.02, 0.02)) for own in factors]
        found = compare_crossed(*times, factors.tolist())
        held += found.low <= 1 <= found.high
    assert 0.92 <= held / 500 <= 0.98
    calm, shaky = side(0.001, 0.0), side(0.05, 0.0)
    assert half_width(compare_crossed(calm, shaky)) > 10 * half_width(compare_crossed(calm, calm))
    # What both sides have with a seed is no scatter.
    hard = [[value * time for value, time in zip(row, (1, 2, 4), strict=True)] for row in calm]
    assert half_width(compare_crossed(hard, hard)) < 0.005
    assert students_t(8) == pytest.approx(2.306, abs=1e-3)
