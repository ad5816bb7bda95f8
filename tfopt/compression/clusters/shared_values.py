"""Brings weights that share a value back to one value: their mean, found and spread in the step.

Guarantees: all weights of a cluster get bit-identical values; where they were equal already they
stay as they are, to the last bit: sums are taken in float64, in which equal float32 values add up
exactly. Nothing here imports TensorFlow before it is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from tfopt.compression.held.kernels import Axes

# A whole number of rows of the kernel for each core of a large machine.
_PARTS = 32


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

    # TensorFlow computes with int32 on the host, also in the middle of a GPU's step.
    return tf.cast(index, tf.int64 if "GPU" in (index.device or "") else tf.int32)


def shares(index: Any, clusters: int) -> Any:
    """What a weight adds to the mean of its cluster, for each row and cluster; 1 in empty ones."""
    import tensorflow as tf

    sizes = sums(tf.ones(index.shape, tf.float64), index, clusters)
    return 1 / tf.maximum(sizes, 1)


def sums(rows: Any, index: Any, clusters: int) -> Any:
    """What the weights of each row's clusters add up to."""
    import tensorflow as tf

    lines, length = rows.shape
    if index.dtype == tf.int64:
        # There is no float64 kernel of DenseBincount on GPUs.
        places = index + clusters * tf.range(lines, dtype=tf.int64)[:, None]
        flat = tf.math.unsorted_segment_sum(rows, places, lines * clusters)
        return tf.reshape(flat, [lines, clusters])
    # Sums of segments take ten times as long on a CPU. Each part is summed by one thread, in
    # order, so that every replica finds the same.
    parts = max(n for n in range(1, _PARTS + 1) if length % n == 0) if lines == 1 else 1
    folded = [lines * parts, length // parts]
    found = tf.raw_ops.DenseBincount(
        input=tf.reshape(index, folded),
        size=clusters,
        weights=tf.reshape(rows, folded),
        binary_output=False,
    )
    return tf.reduce_sum(tf.reshape(found, [lines, parts, clusters]), axis=1)


def spread(values: Any, index: Any) -> Any:
    """Each weight's value, out of those of its row."""
    import tensorflow as tf

    if values.shape[0] == 1:
        return tf.gather(values[0], index)
    return tf.gather(values, index, batch_dims=1)
