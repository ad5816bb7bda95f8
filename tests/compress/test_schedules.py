"""The arithmetic of schedules, without any model."""

import math
from dataclasses import asdict

import pytest
import tensorflow as tf

from tfopt.compress.schedules import ConstantSparsity, PolynomialSparsity, schedule_from_config
from tfopt.errors import UserError

GOLDEN = PolynomialSparsity(0.8, initial_sparsity=0.2, begin_step=100, end_step=110, frequency=2)


def value(schedule, step):
    return float(schedule.at(tf.constant(step, tf.int64), tf.float32))


def is_due(schedule, step):
    return bool(schedule.due(tf.constant(step, tf.int64)))


@pytest.mark.parametrize(
    ("step", "expected"),
    [(99, 0.2), (100, 0.2), (102, 0.4928), (105, 0.725), (110, 0.8), (500, 0.8)],
)
def test_the_polynomial_schedule_has_the_published_values(step, expected):
    assert value(GOLDEN, step) == pytest.approx(expected, abs=1e-6)


def test_masks_are_due_within_the_window_only():
    assert [step for step in range(90, 130) if is_due(GOLDEN, step)] == [
        100, 102, 104, 106, 108, 110,
    ]  # fmt: skip
    forever = ConstantSparsity(0.5, begin_step=3, frequency=5)
    assert [step for step in range(20) if is_due(forever, step)] == [3, 8, 13, 18]


def test_a_polynomial_schedule_is_due_at_its_end_even_off_the_beat():
    uneven = PolynomialSparsity(0.9, end_step=10, frequency=4)
    assert [step for step in range(20) if is_due(uneven, step)] == [0, 4, 8, 10]


@pytest.mark.parametrize(("end", "frequency"), [(100, 5), (5000, 250), (7, 1)])
def test_masks_are_chosen_twenty_times_unless_told(end, frequency):
    schedule = PolynomialSparsity(0.8, end_step=end)
    assert schedule.frequency == frequency
    assert ConstantSparsity(0.8, end_step=end).frequency == frequency
    assert ConstantSparsity(0.8).frequency == 100
    for each in (schedule, ConstantSparsity(0.8)):
        assert schedule_from_config(asdict(each)) == each


@pytest.mark.parametrize(
    "schedule",
    [
        GOLDEN,
        PolynomialSparsity(0.9, end_step=10, frequency=4),
        ConstantSparsity(0.5, begin_step=3, frequency=5),
        ConstantSparsity(0.5, begin_step=3, end_step=12, frequency=5),
    ],
)
def test_the_last_due_step_agrees_with_what_was_due(schedule):
    latest = None
    for step in range(130):
        latest = step if is_due(schedule, step) else latest
        assert schedule.last_due(step) == latest


@pytest.mark.parametrize(
    "make",
    [
        lambda: ConstantSparsity(1.5),
        lambda: ConstantSparsity(math.nan),
        lambda: ConstantSparsity(0.5, begin_step=-1),
        lambda: ConstantSparsity(0.5, begin_step=5, end_step=4),
        lambda: ConstantSparsity(0.5, frequency=0),
        lambda: PolynomialSparsity(0.5, begin_step=7, end_step=7),
        lambda: PolynomialSparsity(0.5, end_step=10, initial_sparsity=0.6),
    ],
)
def test_an_impossible_schedule_cannot_be_made(make):
    with pytest.raises(UserError):
        make()
