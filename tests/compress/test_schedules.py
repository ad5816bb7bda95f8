"""The arithmetic of schedules, without any model."""

import math
from dataclasses import asdict

import pytest
import tensorflow as tf

from tfopt.compress.schedules import ConstantSparsity, PolynomialSparsity, schedule_from_config
from tfopt.errors import UserError

GOLDEN = PolynomialSparsity(0.8, initial_sparsity=0.2, begin_step=100, end_step=110, frequency=2)


def due(schedule):
    return [step for step in range(130) if schedule.due(tf.constant(step, tf.int64))]


def test_the_polynomial_schedule_has_the_published_values():
    steps = [99, 100, 102, 105, 110, 500]
    found = [float(GOLDEN.at(tf.constant(step, tf.int64), tf.float32)) for step in steps]
    assert found == pytest.approx([0.2, 0.2, 0.4928, 0.725, 0.8, 0.8], abs=1e-6)


@pytest.mark.parametrize(
    ("schedule", "steps"),
    [
        (GOLDEN, range(100, 111, 2)),
        # At its end even off the beat
        (PolynomialSparsity(0.9, end_step=10, frequency=4), [0, 4, 8, 10]),
        (ConstantSparsity(0.5, begin_step=3, frequency=5), range(3, 130, 5)),
        (ConstantSparsity(0.5, begin_step=3, end_step=12, frequency=5), [3, 8]),
    ],
)
def test_masks_are_due_within_the_window_and_the_last_due_step_is_one_of_them(schedule, steps):
    assert due(schedule) == [*steps]
    for now in range(130):
        assert schedule.last_due(now) == max((step for step in steps if step <= now), default=None)


@pytest.mark.parametrize(("end", "frequency"), [(100, 5), (5000, 250), (7, 1)])
def test_masks_are_chosen_twenty_times_unless_told(end, frequency):
    schedule = PolynomialSparsity(0.8, end_step=end)
    assert schedule.frequency == frequency
    assert ConstantSparsity(0.8, end_step=end).frequency == frequency
    assert ConstantSparsity(0.8).frequency == 100
    for each in (schedule, ConstantSparsity(0.8)):
        assert schedule_from_config(asdict(each)) == each


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (ConstantSparsity, {"sparsity": 1.5}),
        (ConstantSparsity, {"sparsity": math.nan}),
        (ConstantSparsity, {"begin_step": -1}),
        (ConstantSparsity, {"begin_step": 5, "end_step": 4}),
        (ConstantSparsity, {"frequency": 0}),
        (PolynomialSparsity, {"begin_step": 7, "end_step": 7}),
        (PolynomialSparsity, {"end_step": 10, "initial_sparsity": 0.6}),
    ],
)
def test_an_impossible_schedule_cannot_be_made(kind, settings):
    with pytest.raises(UserError):
        kind(**{"sparsity": 0.5, **settings})
