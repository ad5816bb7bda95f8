"""Ratio, interval and verdict of matched blocks, and when enough has been measured."""

import math

import numpy as np
import pytest

from tfopt import UserError
from tfopt.measure.rounds import Budget
from tfopt.measure.statistics import compare, steadiness
from tfopt.report.footprint import Comparison

RANDOM = np.random.default_rng(0)


def blocks(level, count=8, noise=0.01, windows=30):
    return [level * RANDOM.lognormal(0, noise, windows) for _ in range(count)]


def test_a_clear_difference_is_found_with_its_size():
    slower = compare(blocks(10), blocks(12))
    assert slower.verdict == "slower"
    assert slower.low < 1.2 < slower.high
    assert slower.ratio == pytest.approx(1.2, rel=0.01)
    faster = compare(blocks(10), blocks(5))
    assert (faster.verdict, faster.rounds) == ("faster", 8)


def test_the_same_input_gives_the_same_interval():
    reference, variant = blocks(10), blocks(11)
    assert compare(reference, variant) == compare(reference, variant)
    assert compare(reference, variant) != compare(reference, variant, seed=1)


def test_swapping_the_two_turns_the_interval_round():
    reference, variant = blocks(10), blocks(11)
    there, back = compare(reference, variant), compare(variant, reference)
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


def test_the_verdict_is_what_the_interval_allows():
    def verdict(low, high):
        return Comparison(math.sqrt(low * high), low, high, 5).verdict

    assert verdict(0.8, 0.99) == "faster"
    assert verdict(1.01, 1.2) == "slower"
    assert verdict(0.985, 1.015) == "no difference"
    # Surely different, and surely too little to matter.
    assert verdict(1.001, 1.015) == "no difference"
    assert verdict(0.97, 1.01) == "inconclusive"
    assert verdict(0.99, 1.03) == "inconclusive"


def test_few_rounds_give_the_interval_of_students_t():
    """Without noise inside the blocks this is the textbook's paired interval."""
    random = np.random.default_rng(3)
    held, trials = 0, 400
    for _ in range(trials):
        levels = random.lognormal(0, 0.03, (2, 5))
        comparison = compare([[x] for x in levels[0]], [[x] for x in levels[1]])
        held += comparison.low <= 1 <= comparison.high
    assert 0.92 <= held / trials <= 0.98


@pytest.mark.parametrize(
    ("reference", "variant", "received"),
    [
        ([[1.0]] * 3, [[1.0]] * 4, "3 blocks against 4"),
        ([[1.0]], [[1.0]], "1 rounds"),
        ([[1.0], []], [[1.0], [1.0]], "without windows"),
        ([[1.0], [0.0]], [[1.0], [1.0]], "not positive"),
        ([[1.0], [1.0]], [[1.0], [math.nan]], "not positive"),
    ],
)
def test_blocks_that_cannot_be_compared_are_refused(reference, variant, received):
    with pytest.raises(UserError, match="cannot be compared") as caught:
        compare(reference, variant)
    assert received in caught.value.received


def test_drift_and_autocorrelation_are_seen():
    level = [10 * (1 + 0.01 * number) * RANDOM.lognormal(0, 0.001, 50) for number in range(11)]
    seen = steadiness(level)
    assert seen.drift == pytest.approx(0.1, abs=0.01)
    assert abs(seen.autocorrelation) < 0.15
    walk = [10 + np.cumsum(RANDOM.normal(0, 0.1, 200)) for _ in range(3)]
    assert steadiness(walk).autocorrelation > 0.8
    assert steadiness([[1.0], [1.0]]).autocorrelation is None


def test_the_budget_goes_on_until_every_interval_is_narrow():
    budget = Budget(at_least=3, at_most=6, half_width=0.02)
    narrow, wide = Comparison(1.0, 0.99, 1.01, 3), Comparison(2.0, 1.8, 2.2, 3)
    assert budget.wants_more(2, [narrow])
    assert not budget.wants_more(3, [narrow, narrow])
    assert budget.wants_more(3, [narrow, wide])
    assert not budget.wants_more(6, [wide])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"at_least": 0}, "at_least"),
        ({"at_least": 1}, "no room"),
        ({"at_least": 9, "at_most": 8}, "no room"),
        ({"half_width": 0.0}, "half_width"),
        ({"half_width": 2}, "half_width"),
    ],
)
def test_a_budget_that_cannot_be_kept_is_refused(settings, words):
    with pytest.raises(UserError, match=words):
        Budget(**settings)
