"""Choose the weights of a kernel that become zero, by scores and by a pattern.

A pattern keeps the highest scores, and the first of equal ones. ``inputs`` of a kernel are the axes
that are summed over, the input channels last.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from tfopt.compress.schedules import Schedule, kept_at
from tfopt.errors import UserError

Criterion = Literal["magnitude", "lamp"]
Axes = tuple[int, ...]


class Pattern:
    """The base class of patterns; ``str`` returns the name in ``prune(pattern=...)``."""

    sparsity: ClassVar[float | None] = None
    """The sparsity of the pattern; None: that of the schedule."""

    def choose(self, scores: Any, schedule: Schedule, step: Any, inputs: Axes | None) -> Any:
        """Return True for the weights that are kept at a step."""
        raise NotImplementedError

    def obstacle(self, shape: Sequence[int], inputs: Axes | None) -> str | None:
        """Return why a kernel of this shape cannot have the pattern; None if it can."""
        return None

    def target(self, shape: Sequence[int], sparsity: float, inputs: Axes | None) -> float:
        """Return the possible sparsity of a kernel of this shape."""
        return sparsity

    @property
    def together(self) -> int:
        """Return the weights that become zero together: a target may be missed by that many."""
        return 1


@dataclass(frozen=True)
class Unstructured(Pattern):
    """Any weight may be zero: the most accurate pattern, for size, not for speed."""

    def __str__(self) -> str:
        return "unstructured"

    def choose(self, scores: Any, schedule: Schedule, step: Any, inputs: Axes | None) -> Any:
        return highest(scores, schedule, step)


@dataclass(frozen=True)
class TwoOfFour(Pattern):
    """Two of four adjacent input channels are kept, for sparse tensor cores.

    A last group of fewer channels keeps two of them, too: an engine pads it with zeros.
    """

    sparsity: ClassVar[float | None] = 0.5

    def __str__(self) -> str:
        return "2:4"

    def choose(self, scores: Any, schedule: Schedule, step: Any, inputs: Axes | None) -> Any:
        import keras
        import tensorflow as tf

        assert inputs is not None
        moved = keras.ops.moveaxis(scores, inputs[-1], -1)
        channels = moved.shape[-1]
        edges = [[0, 0]] * (len(moved.shape) - 1) + [[0, -channels % 4]]
        padded = tf.pad(moved, edges, constant_values=scores.dtype.min)
        best = tf.math.top_k(tf.reshape(padded, [-1, 4]), k=2).indices
        kept = tf.reduce_any(tf.range(4) == best[:, :, None], axis=1)
        cut = tf.reshape(kept, padded.shape)[..., :channels]
        return keras.ops.moveaxis(cut, -1, inputs[-1])

    def obstacle(self, shape: Sequence[int], inputs: Axes | None) -> str | None:
        if inputs is None:
            return "its inputs are not summed over: 2:4 has no effect"
        channels = shape[inputs[-1]]
        if channels <= 2:
            return f"it has {channels} input channels, all of which 2:4 keeps"
        return None

    def target(self, shape: Sequence[int], sparsity: float, inputs: Axes | None) -> float:
        assert inputs is not None
        channels = shape[inputs[-1]]
        groups, rest = divmod(channels, 4)
        return (2 * groups + max(0, rest - 2)) / channels


@dataclass(frozen=True)
class Block(Pattern):
    """Whole blocks of the kernel's matrix, inputs by outputs, are zero.

    ``height`` counts inputs, ``width`` outputs; the inputs of a convolution are its window and
    input channels. A block's score is the mean of its scores; an edge block may be smaller.
    """

    height: int
    width: int

    def __str__(self) -> str:
        return f"{self.height}x{self.width}"

    def choose(self, scores: Any, schedule: Schedule, step: Any, inputs: Axes | None) -> Any:
        import tensorflow as tf

        assert inputs is not None
        order = [*inputs, *(axis for axis in range(len(scores.shape)) if axis not in inputs)]
        moved = tf.transpose(scores, order)
        rows = math.prod(scores.shape[axis] for axis in inputs)
        matrix = tf.reshape(moved, [rows, -1])
        kept = highest(self._averages(matrix), schedule, step)
        whole = tf.repeat(tf.repeat(kept, self.height, axis=0), self.width, axis=1)
        cut = tf.reshape(whole[:rows, : matrix.shape[1]], moved.shape)
        return tf.transpose(cut, [order.index(axis) for axis in range(len(order))])

    def obstacle(self, shape: Sequence[int], inputs: Axes | None) -> str | None:
        if inputs is None:
            return "it is not a matrix of inputs by outputs"
        rows = math.prod(shape[axis] for axis in inputs)
        columns = math.prod(shape) // rows
        if rows < self.height or columns < self.width:
            return f"a block of {self} is larger than the kernel, {rows} by {columns}"
        return None

    @property
    def together(self) -> int:
        return self.height * self.width

    def _averages(self, matrix: Any) -> Any:
        import tensorflow as tf

        rows, columns = matrix.shape
        edges = [[0, -rows % self.height], [0, -columns % self.width]]

        def sums(values: Any) -> Any:
            padded = tf.pad(values, edges)
            high, wide = padded.shape
            shape = [high // self.height, self.height, wide // self.width, self.width]
            return tf.reduce_sum(tf.reshape(padded, shape), axis=(1, 3))

        return sums(matrix) / sums(tf.ones_like(matrix))


def highest(scores: Any, schedule: Schedule, step: Any) -> Any:
    """Return True for the highest scores that are kept at a step, at least one."""
    import tensorflow as tf

    flat = tf.reshape(scores, [-1])
    size = int(flat.shape[0])
    ordered, order = tf.math.top_k(flat, k=size)
    last = kept_at(schedule, step, size) - 1
    lowest = tf.gather(ordered, last)
    # top_k orders equal scores by index, so the last one kept bounds the others.
    first_equals = tf.logical_and(flat == lowest, tf.range(size) <= tf.gather(order, last))
    return tf.reshape(tf.logical_or(flat > lowest, first_equals), scores.shape)


UNSTRUCTURED = Unstructured()
_BLOCK = re.compile(r"([1-9]\d{0,5})x([1-9]\d{0,5})", re.ASCII)


def as_pattern(name: object) -> Pattern:
    """Return the pattern of a name: "unstructured", "2:4", or blocks such as "1x16"."""
    for pattern in (UNSTRUCTURED, TwoOfFour()):
        if name == str(pattern):
            return pattern
    block = _BLOCK.fullmatch(name) if isinstance(name, str) else None
    if block is None:
        raise UserError(
            "Unknown pattern.",
            expected='"unstructured", "2:4" (2 of 4 input channels are kept) or "1x16" (blocks of '
            "1 input by 16 outputs)",
            received=repr(name),
        )
    return Block(int(block[1]), int(block[2]))


def scores_of(weights: Any, criterion: Criterion = "magnitude") -> Any:
    """Return the scores of weights: their magnitude, or LAMP.

    NaN has the highest score, since a mask must not hide it.
    """
    import tensorflow as tf

    scores = _lamp(weights) if criterion == "lamp" else tf.abs(weights)
    lost = tf.logical_or(tf.math.is_nan(scores), tf.math.is_nan(weights))
    return tf.where(lost, scores.dtype.max, scores)


def _lamp(weights: Any) -> Any:
    """Return squares of weights relative to the sum of those in the kernel that are not smaller.

    Within a kernel the order is that of magnitude; between kernels it does not depend on their
    scale, which a normalization makes meaningless (Lee et al., 2021).
    """
    import tensorflow as tf

    squares = tf.reshape(tf.square(tf.cast(weights, tf.float32)), [-1])
    order = tf.argsort(squares, direction="DESCENDING", stable=True)
    descending = tf.gather(squares, order)
    shares = tf.math.divide_no_nan(descending, tf.cumsum(descending))
    size = tf.shape(squares)
    return tf.reshape(tf.scatter_nd(order[:, None], shares, size), tf.shape(weights))
