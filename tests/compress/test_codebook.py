"""k-means in one dimension: what it finds, and what it begins with."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from tfopt.compress.codebook import codebook, nearest

INITIAL = ("kmeans++", "linear", "density", "random")
RNG = np.random.default_rng(0)


def values_of(rows, clusters, initial="kmeans++", counted=None):
    rows = tf.constant(rows, tf.float64)
    counted = tf.ones_like(rows, tf.bool) if counted is None else tf.constant(counted)
    return codebook(rows, counted, clusters, initial).numpy()


def spread_of(row, values):
    return np.min((row[:, None] - values) ** 2, axis=1).sum()


def best_spread(row, clusters):
    """By trying every way to cut the sorted weights."""
    ordered = np.sort(row)
    return min(
        sum(part.var() * len(part) for part in np.split(ordered, cuts))
        for cuts in itertools.combinations(range(1, len(row)), clusters - 1)
    )


@pytest.mark.parametrize("initial", INITIAL)
def test_each_value_is_the_mean_of_the_weights_nearest_to_it(initial):
    rows = RNG.normal(size=(3, 500))
    values = values_of(rows, 6, initial)
    index = nearest(tf.constant(rows), tf.constant(values)).numpy()
    assert (np.diff(values, axis=1) >= 0).all()
    for row, own, places in zip(rows, values, index, strict=True):
        np.testing.assert_array_equal(places, np.abs(row[:, None] - own).argmin(axis=1))
        for k in set(places):
            assert own[k] == pytest.approx(row[places == k].mean())


def test_on_small_rows_it_is_near_the_best_there_is():
    rows = RNG.normal(size=(20, 12))
    found = [spread_of(row, own) for row, own in zip(rows, values_of(rows, 3), strict=True)]
    best = [best_spread(row, 3) for row in rows]
    assert (np.array(found) >= np.array(best) - 1e-9).all()
    assert sum(found) < 1.5 * sum(best)


@pytest.mark.parametrize("initial", INITIAL)
def test_few_different_weights_are_found_exactly(initial):
    row = np.repeat([-1.0, 0.5, 2.0], [5, 7, 9])
    values = values_of(row[None], 8, initial)[0]
    index = nearest(tf.constant(row[None]), tf.constant(values[None])).numpy()[0]
    if initial == "kmeans++":
        np.testing.assert_array_equal(values[index], row)
    assert len(set(index)) <= 3


@pytest.mark.parametrize("initial", INITIAL)
def test_weights_that_do_not_count_move_nothing(initial):
    rows = RNG.normal(size=(2, 60))
    more = np.concatenate([rows, np.full((2, 40), 9.0)], axis=1)
    counted = np.arange(100)[None].repeat(2, axis=0) < 60
    found = values_of(more, 4, initial, counted)
    assert found.max() < 4
    np.testing.assert_allclose(found, values_of(rows, 4, initial), atol=1e-6)


def test_a_row_in_which_none_counts_has_finite_values():
    for initial in INITIAL:
        assert np.isfinite(values_of(np.zeros((1, 8)), 3, initial, np.zeros((1, 8), bool))).all()


@pytest.mark.parametrize("initial", ["kmeans++", "density"])
def test_it_is_the_same_each_time_and_inside_compiled_code(initial):
    rows = RNG.normal(size=(2, 200))
    once = values_of(rows, 5, initial)
    np.testing.assert_array_equal(once, values_of(rows, 5, initial))
    compiled = tf.function(
        lambda rows: codebook(rows, tf.ones_like(rows, tf.bool), 5, initial), jit_compile=True
    )
    np.testing.assert_allclose(compiled(tf.constant(rows)).numpy(), once, rtol=1e-9)
