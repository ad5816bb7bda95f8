"""K-means in one dimension.

The result is the same in every process and on every replica: it is computed in float64, and random
numbers are drawn on the host. This file imports TensorFlow: import it inside functions.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

_SEED = 9
_ROUNDS = 100


def codebook(weights: Any, counted: Any, clusters: int) -> Any:
    """Return the centroids of so many clusters, ascending.

    Args:
        weights: A vector of float64.
        counted: True for the weights that count.
        clusters: The number of clusters.
    """
    values: Any = _k_means(weights, counted, np.random.default_rng(_SEED).random(clusters))
    return values


def nearest(weights: Any, values: Any) -> Any:
    """Return the indices of the nearest of ascending values; of two, the higher."""
    return tf.searchsorted(_midpoints(values), weights, side="right")


def recovered_clusters(weights: Any, zeros: bool) -> Any:
    """Return the clusters of weights with equal values.

    With ``zeros``, cluster 0 is that of the zeros, even without any.
    """
    values, index = np.unique(np.asarray(weights, "float64"), return_inverse=True)
    if not zeros:
        return index
    if 0 not in values:
        return index + 1
    zero = np.searchsorted(values, 0)
    return np.where(index == zero, 0, index + (index < zero))


# Traced once for kernels of any size; eagerly, a large model would take minutes.
@tf.function(  # type: ignore[untyped-decorator]
    input_signature=[tf.TensorSpec([None], dtype) for dtype in (tf.float64, tf.bool, tf.float64)],
    autograph=False,
)
def _k_means(weights: Any, counted: Any, drawn: Any) -> Any:
    return _lloyd(weights, counted, tf.sort(_first_values(weights, counted, drawn)))


def _first_values(weights: Any, counted: Any, drawn: Any) -> Any:
    """Return initial centroids by k-means++; ``drawn`` has a number in [0, 1) for each."""
    weight, places = tf.cast(counted, weights.dtype), tf.range(tf.size(drawn))

    def draw(k: Any, likelihood: Any) -> Any:
        cumulated = tf.cumsum(likelihood)
        place = tf.searchsorted(cumulated, [drawn[k] * cumulated[-1]], side="right")[0]
        return tf.gather(weights, tf.minimum(place, tf.shape(weights)[0] - 1))

    def add(k: Any, values: Any, distance: Any) -> Any:
        value = draw(k, distance * weight)
        values = tf.where(places == k, value, values)
        return k + 1, values, tf.minimum(distance, tf.square(weights - value))

    first = draw(0, weight)
    state = (1, tf.zeros_like(drawn) + first, tf.square(weights - first))
    return tf.while_loop(lambda k, *_: k < tf.size(drawn), add, state)[1]


def _lloyd(weights: Any, counted: Any, values: Any) -> Any:
    """Move centroids to the means of their weights, until no weight changes its cluster."""
    order = tf.argsort(weights, stable=True)
    ordered = tf.gather(weights, order)
    weight = tf.cast(tf.gather(counted, order), weights.dtype)
    # Cumulative counts and sums
    below, summed = (tf.pad(tf.cumsum(terms), [[1, 0]]) for terms in (weight, weight * ordered))

    def bounds(values: Any) -> Any:
        inner = tf.searchsorted(ordered, _midpoints(values), side="left")
        return tf.concat([[0], inner, tf.shape(weights)], axis=0)

    def move(turn: Any, values: Any, at: Any, moved: Any) -> Any:
        sizes, sums = (keras.ops.diff(tf.gather(totals, at)) for totals in (below, summed))
        values = tf.where(sizes > 0, sums / tf.maximum(sizes, 1), values)
        now = bounds(values)
        return turn + 1, values, now, tf.reduce_any(now != at)

    state = (0, values, bounds(values), True)
    going = tf.while_loop(lambda turn, v, at, moved: moved, move, state, maximum_iterations=_ROUNDS)
    return going[1]


def _midpoints(values: Any) -> Any:
    return (values[1:] + values[:-1]) / 2
