"""k-means in one dimension."""

import numpy as np
import pytest
import tensorflow as tf

from tfopt.compress.codebook import codebook, nearest

RNG = np.random.default_rng(0)


def values_of(row, clusters, counted=None):
    row = tf.constant(row, tf.float64)
    counted = tf.ones_like(row, tf.bool) if counted is None else tf.constant(counted)
    return codebook(row, counted, clusters).numpy()


def test_each_value_is_the_mean_of_the_weights_nearest_to_it():
    row = RNG.normal(size=500)
    values = values_of(row, 6)
    index = nearest(tf.constant(row), tf.constant(values)).numpy()
    assert (np.diff(values) >= 0).all()
    np.testing.assert_array_equal(index, np.abs(row[:, None] - values).argmin(axis=1))
    for k in set(index):
        assert values[k] == pytest.approx(row[index == k].mean())


def test_weights_that_do_not_count_move_nothing():
    row = RNG.normal(size=60)
    more = np.concatenate([row, np.full(40, 9.0)])
    found = values_of(more, 4, np.arange(100) < 60)
    assert found.max() < 4
    np.testing.assert_allclose(found, values_of(row, 4), atol=1e-6)
    assert np.isfinite(values_of(np.zeros(8), 3, np.zeros(8, bool))).all()


def test_it_is_the_same_each_time_and_inside_compiled_code():
    row = RNG.normal(size=200)
    once = values_of(row, 5)
    np.testing.assert_array_equal(once, values_of(row, 5))
    compiled = tf.function(
        lambda row: codebook(row, tf.ones_like(row, tf.bool), 5), jit_compile=True
    )
    np.testing.assert_allclose(compiled(tf.constant(row)).numpy(), once, rtol=1e-9)
