"""Brings weights that share a value back to one value: their mean, found and spread in the step.

Guarantees: all weights of a cluster get bit-identical values; where they were equal already they
stay as they are, to the last bit: sums are taken in float64, in which equal float32 values add up
exactly, and in one order, so that every replica finds the same. Nothing here imports TensorFlow
before it is used.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

from tfopt.compression.held.kernels import Axes


@dataclass(frozen=True)
class Rows:
    """How a kernel lies as rows that are clustered independently: one, or one for each channel."""

    shape: tuple[int, ...]
    channels: Axes | None

    @property
    def of(self) -> tuple[int, int]:
        """How many rows, and of how many weights each."""
        rows = prod(self.shape[axis] for axis in self.channels or ())
        return rows, prod(self.shape) // rows

    def take(self, kernel: Any) -> Any:
        """The kernel's weights as rows."""
        import tensorflow as tf

        turned = kernel if self.channels is None else tf.transpose(kernel, self._order)
        return tf.reshape(turned, self.of)

    def give(self, rows: Any) -> Any:
        """The kernel that the rows were taken from."""
        import tensorflow as tf

        if self.channels is None:
            return tf.reshape(rows, self.shape)
        turned = tf.reshape(rows, [self.shape[axis] for axis in self._order])
        return tf.transpose(turned, [self._order.index(axis) for axis in range(len(self.shape))])

    @property
    def _order(self) -> list[int]:
        channels = list(self.channels or ())
        return channels + [axis for axis in range(len(self.shape)) if axis not in channels]


def usable(index: Any) -> Any:
    """An index kept in a variable, in the type that its device computes with."""
    import tensorflow as tf

    return tf.cast(index, tf.int64 if _on_gpu(index) else tf.int32)


def _on_gpu(index: Any) -> bool:
    # TensorFlow computes with int32 on the host, also in the middle of a GPU's step.
    return "GPU" in (index.device or "")


def shares(index: Any, clusters: int) -> Any:
    """What a weight adds to the mean of its cluster, for each row and cluster; 1 in empty ones."""
    import tensorflow as tf

    sizes = sums(tf.ones(index.shape, tf.float64), index, clusters)
    return 1 / tf.maximum(sizes, 1)


def sums(rows: Any, index: Any, clusters: int) -> Any:
    """What the weights of each row's clusters add up to."""
    import tensorflow as tf

    if index.dtype == tf.int64:
        lines = rows.shape[0]
        # There is no float64 kernel of DenseBincount on GPUs.
        places = index + clusters * tf.range(lines, dtype=tf.int64)[:, None]
        flat = tf.math.unsorted_segment_sum(rows, places, lines * clusters)
        return tf.reshape(flat, [lines, clusters])
    # Sums of segments take ten times as long on a CPU. A row is summed by one thread, in order.
    return tf.raw_ops.DenseBincount(input=index, size=clusters, weights=rows, binary_output=False)


def spread(values: Any, index: Any) -> Any:
    """Each weight's value, out of those of its row."""
    import tensorflow as tf

    if values.shape[0] == 1:
        return tf.gather(values[0], index)
    return tf.gather(values, index, batch_dims=1)


def evened(kernel: Any, rows: Rows, index: Any, share: Any) -> Any:
    """The kernel with the mean of its weights for each cluster.

    ``index`` and ``share`` are variables, so that it is known where they live.
    """
    import tensorflow as tf

    # One pass of machine code instead of an operation for each conversion, sum and look-up: less
    # than half the time. Keras does not use XLA on a Mac either.
    if tf.inside_function() and not _on_gpu(index) and sys.platform != "darwin":
        return _compiled(rows)(kernel, index.read_value(), share.read_value())
    return _even(rows, kernel, usable(index), share.read_value())


def _even(rows: Rows, kernel: Any, index: Any, share: Any) -> Any:
    import tensorflow as tf

    means = sums(tf.cast(rows.take(kernel), tf.float64), index, share.shape[1]) * share
    return rows.give(spread(tf.cast(means, kernel.dtype), index))


@cache
def _compiled(rows: Rows) -> Any:
    """One program for all kernels of the same shape."""
    import tensorflow as tf

    def even(kernel: Any, index: Any, share: Any) -> Any:
        return _even(rows, kernel, tf.cast(index, tf.int32), share)

    return tf.function(even, jit_compile=True, autograph=False)
