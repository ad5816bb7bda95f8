"""Few values for many weights: k-means in one dimension, and what it begins with.

Equal weights give equal values, in every process and on every replica: all is computed in float64,
and nothing is drawn on a device. Importing this imports TensorFlow: import it inside functions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import tensorflow as tf

_SEED = 9
_ROUNDS = 100
# tfmot looks its distribution function up on so many points, with so much room at both ends.
_GRID, _ROOM = 30, 0.01


def codebook(rows: Any, counted: Any, clusters: int, initial: str) -> Any:
    """Return so many values for each row, ascending: the means of the weights nearest to them.

    Args:
        rows: The weights, in float64.
        counted: True for the weights that count.
    """
    values: Any = _traced(clusters, initial)(rows, counted)
    return values


@cache
def _traced(clusters: int, initial: str) -> Any:
    """Trace once for kernels of any shape: step by step, a large model would take minutes."""

    def found(rows: Any, counted: Any) -> Any:
        return _lloyd(rows, counted, initial_values(rows, counted, clusters, initial))

    rows, counted = (tf.TensorSpec([None, None], dtype) for dtype in (tf.float64, tf.bool))
    return tf.function(found, input_signature=[rows, counted], autograph=False)


def nearest(rows: Any, values: Any) -> Any:
    """Return which of its row's ascending values each weight is nearest to."""
    # Of two at the same distance the higher.
    return tf.searchsorted(_midpoints(values), rows, side="right")


def recovered_clusters(rows: Any, zeros: bool) -> Any:
    """Return each weight's cluster: equal values are one.

    With ``zeros``, cluster 0 is that of the zeros, empty in a row without any.
    """
    return np.stack([_recovered(row, zeros) for row in np.asarray(rows, "float64")])


def _recovered(row: Any, zeros: bool) -> Any:
    values, index = np.unique(row, return_inverse=True)
    if not zeros:
        return index
    if 0 not in values:
        return index + 1
    zero = np.searchsorted(values, 0)
    return np.where(index == zero, 0, index + (index < zero))


def initial_values(rows: Any, counted: Any, clusters: int, initial: str) -> Any:
    """Return the values that k-means begins with, ascending.

    "linear" and "density" are tfmot's: evenly spaced between the extremes, and where the
    distribution function, looked up on a coarse grid, takes evenly spaced values.
    """
    return tf.sort(_INITIAL[initial](rows, counted, clusters), axis=1)


def _linear(rows: Any, counted: Any, clusters: int) -> Any:
    return tf.linspace(*_extremes(rows, counted), clusters, axis=1)


def _density(rows: Any, counted: Any, clusters: int) -> Any:
    low, high = _extremes(rows, counted)
    grid = tf.linspace(low - _ROOM, high + _ROOM, _GRID, axis=1)
    ordered, below, _ = _cumulated(rows, counted)
    share = tf.gather(below, tf.searchsorted(ordered, grid, side="right"), batch_dims=1)
    wanted = tf.linspace(tf.constant(0.01, rows.dtype), 1.0, clusters)
    wanted = tf.repeat(wanted[None], tf.shape(rows)[0], axis=0)
    # tfmot divides in float32, which decides on which side of a grid point a value falls.
    function = tf.cast(share / tf.maximum(below[:, -1:], 1), tf.float32)
    found = tf.searchsorted(function, tf.cast(wanted, tf.float32), side="right")
    return tf.gather(grid, tf.minimum(found, _GRID - 1), batch_dims=1)


def _random(rows: Any, counted: Any, clusters: int) -> Any:
    low, high = _extremes(rows, counted)
    drawn = tf.constant(_drawn(clusters), rows.dtype)
    return low[:, None] + (high - low)[:, None] * drawn


def _plus_plus(rows: Any, counted: Any, clusters: int) -> Any:
    """Draw each next value among the weights, by the square of its distance from the others."""
    weight = tf.cast(counted, rows.dtype)
    drawn = tf.constant(_drawn(clusters), rows.dtype)

    def draw(k: Any, likelihood: Any) -> Any:
        cumulated = tf.cumsum(likelihood, axis=1)
        place = tf.searchsorted(cumulated, drawn[k] * cumulated[:, -1:], side="right")
        return tf.gather(rows, tf.minimum(place, tf.shape(rows)[1] - 1), batch_dims=1)

    def add(k: Any, values: Any, distance: Any) -> Any:
        value = draw(k, distance * weight)
        values = tf.where(tf.range(clusters)[None] == k, value, values)
        return k + 1, values, tf.minimum(distance, tf.square(rows - value))

    first = draw(0, weight)
    state = (1, tf.repeat(first, clusters, axis=1), tf.square(rows - first))
    return tf.while_loop(lambda k, *_: k < clusters, add, state)[1]


def _drawn(count: int) -> Any:
    """Return numbers in [0, 1) that are the same on every device, unlike TensorFlow's own."""
    return np.random.default_rng(_SEED).random(count)


_INITIAL: dict[str, Callable[[Any, Any, int], Any]] = {
    "kmeans++": _plus_plus,
    "linear": _linear,
    "density": _density,
    "random": _random,
}


def _lloyd(rows: Any, counted: Any, values: Any) -> Any:
    """Move values to the means of the weights nearest to them, until none changes its place."""
    ordered, below, summed = _cumulated(rows, counted)

    def bounds(values: Any) -> Any:
        inner = tf.searchsorted(ordered, _midpoints(values), side="left")
        first = tf.zeros_like(inner[:, :1])
        return tf.concat([first, inner, first + tf.shape(rows)[1]], axis=1)

    def move(turn: Any, values: Any, at: Any, moved: Any) -> Any:
        sizes, sums = (_differences(tf.gather(c, at, batch_dims=1)) for c in (below, summed))
        values = tf.where(sizes > 0, sums / tf.maximum(sizes, 1), values)
        now = bounds(values)
        return turn + 1, values, now, tf.reduce_any(now != at)

    state = (0, values, bounds(values), True)
    going = tf.while_loop(lambda turn, v, at, moved: moved, move, state, maximum_iterations=_ROUNDS)
    return going[1]


def _cumulated(rows: Any, counted: Any) -> tuple[Any, Any, Any]:
    """Return the weights ascending, and before each place how many count and their sum."""
    order = tf.argsort(rows, axis=1, stable=True)
    ordered = tf.gather(rows, order, batch_dims=1)
    weight = tf.cast(tf.gather(counted, order, batch_dims=1), rows.dtype)
    sums = (
        tf.pad(tf.cumsum(each, axis=1), [[0, 0], [1, 0]]) for each in (weight, weight * ordered)
    )
    return (ordered, *sums)


def _extremes(rows: Any, counted: Any) -> tuple[Any, Any]:
    """Return the lowest and the highest weight that counts; zeros in a row where none does."""
    none = ~tf.reduce_any(counted, axis=1)
    low = tf.reduce_min(tf.where(counted, rows, rows.dtype.max), axis=1)
    high = tf.reduce_max(tf.where(counted, rows, rows.dtype.min), axis=1)
    return tuple(tf.where(none, tf.zeros_like(low), each) for each in (low, high))


def _midpoints(values: Any) -> Any:
    return (values[:, 1:] + values[:, :-1]) / 2


def _differences(values: Any) -> Any:
    return values[:, 1:] - values[:, :-1]
