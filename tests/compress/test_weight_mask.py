"""The constraint itself: which weights it keeps."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfopt.compress.schedules import ConstantSparsity, PolynomialSparsity
from tfopt.compress.weight_mask import WeightMask, chosen_mask


def mask_of(weights, sparsity):
    return chosen_mask(tf.abs(tf.constant(weights)), ConstantSparsity(sparsity), 0).numpy()


def test_sparsity_zero_keeps_all_and_something_is_always_kept():
    assert mask_of(np.zeros(5, "float32"), 0.0).all()
    assert mask_of(np.arange(5, dtype="float32"), 0.99).tolist() == [False] * 4 + [True]


def test_a_weight_that_became_nan_stays_visible():
    mask = WeightMask(ConstantSparsity(0.5))
    kernel = keras.Variable(np.float32([np.nan, 1.0, 2.0, 3.0]))
    assert np.isnan(mask(kernel).numpy()).tolist() == [True, False, False, False]
    assert mask(kernel).numpy()[1:].tolist() == [0.0, 0.0, 3.0]


@pytest.mark.parametrize(("jit", "dtype"), [(False, "float64"), (True, "float32")])
def test_it_chooses_as_a_stable_sort_would(jit, dtype):
    random = np.random.default_rng(1)
    # From subnormal to infinite, with repetitions.
    values = random.standard_normal(4000) * 10.0 ** random.integers(-44, 38, 4000)
    weights = random.permutation(np.concatenate([values, values[:500], [np.inf, 0.0, -0.0]]))
    weights = weights.astype(dtype)
    order = np.argsort(-np.abs(weights), kind="stable")
    for sparsity in (0.1, 0.5, 0.903, 0.999):
        kept = tf.function(
            lambda w, s=sparsity: chosen_mask(tf.abs(w), ConstantSparsity(s), 0), jit_compile=jit
        )(weights).numpy()
        assert sorted(np.flatnonzero(kept)) == sorted(order[: round(len(weights) * (1 - sparsity))])


def test_a_mask_stays_until_the_next_choice_and_after_the_last():
    kernel = keras.Variable(np.arange(1.0, 11.0, dtype="float32"))
    mask = WeightMask(ConstantSparsity(0.5, begin_step=3, end_step=5, frequency=2))
    mask.bind(kernel)
    kept = []
    for _ in range(6):
        # The order is turned round, so that a fresh choice differs from the one before.
        kernel.assign(kernel.numpy().max() + 1 - np.abs(kernel.numpy()))
        kernel.assign(mask(kernel))
        kept.append(tuple(np.flatnonzero(kernel.numpy())))
    low, high = (0, 1, 2, 3, 4), (5, 6, 7, 8, 9)
    assert kept[0] == (*low, *high)
    # Choices fall due at steps 3 and 5: the second and the fourth call.
    assert kept[1] == kept[2] == high
    assert kept[3] == kept[4] == kept[5] == low


def test_its_config_carries_schedule_step_and_the_inner_constraint():
    kernel = keras.Variable(np.ones(4, "float32"))
    schedule = PolynomialSparsity(0.5, end_step=9, frequency=3)
    mask = WeightMask(schedule, inner=keras.constraints.MaxNorm(2.0))
    mask.bind(kernel)
    for _ in range(4):
        kernel.assign(mask(kernel))
    again = keras.constraints.deserialize(keras.constraints.serialize(mask))
    assert isinstance(again, WeightMask)
    assert (again.schedule, again.step) == (schedule, 5)
    assert again.inner.max_value == 2.0
