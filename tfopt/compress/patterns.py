"""Which weights of a kernel become zero: what each is worth, and which may be zero together.

Of a score for each weight, a pattern keeps the highest, and of equal ones those that come first. A
kernel comes with its ``inputs``: the axes that are summed over, the input channels last.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from tfopt.compress.schedules import Schedule, kept_at
from tfopt.errors import UserError

Criterion = Literal["magnitude", "lamp"]
Axes = tuple[int, ...]


class Pattern:
    """The base of all patterns; its text is the name by which ``prune`` takes it."""

    sparsity: ClassVar[float | None] = None
    """The sparsity that the pattern itself means; None where a schedule says it."""

    def choose(self, scores: Any, schedule: Schedule, step: Any, inputs: Axes | None) -> Any:
        """Return True for the weights that stay at a step."""
        raise NotImplementedError

    def obstacle(self, shape: Sequence[int], inputs: Axes | None) -> str | None:
        """Return why a kernel of this shape cannot have the pattern; None if it can."""
        return None

    def target(self, shape: Sequence[int], sparsity: float, inputs: Axes | None) -> float:
        """Return what a kernel of this shape can have of that sparsity."""
        return sparsity

    @property
    def together(self) -> int:
        """Return how many weights become zero at once: a target may be missed by that many."""
        return 1


@dataclass(frozen=True)
class Unstructured(Pattern):
    """Any weight may be zero: the most accurate pattern, which brings size and no speed."""

    def __str__(self) -> str:
        return "unstructured"

    def choose(self, scores: Any, schedule: Schedule, step: Any, inputs: Axes | None) -> Any:
        return _highest(scores, schedule, step)


@dataclass(frozen=True)
class TwoOfFour(Pattern):
    """Two of each four neighbouring input channels stay, as sparse tensor cores want it.

    A last group with fewer channels keeps two of them too, as an engine that fills it up with zeros
    needs it.
    """

    sparsity: ClassVar[float | None] = 0.5

    def __str__(self) -> str:
        return "2:4"

    def choose(self, scores: Any, schedule: Schedule, step: Any, inputs: Axes | None) -> Any:
        import keras
        import tensorflow as tf

        assert inputs is not None
        turned = keras.ops.moveaxis(scores, inputs[-1], -1)
        channels = turned.shape[-1]
        # What is filled up is worth less than any weight.
        edges = [[0, 0]] * (len(turned.shape) - 1) + [[0, -channels % 4]]
        filled = tf.pad(turned, edges, constant_values=scores.dtype.min)
        best = tf.math.top_k(tf.reshape(filled, [-1, 4]), k=2).indices
        stays = tf.reduce_any(tf.range(4) == best[:, :, None], axis=1)
        cut = tf.reshape(stays, filled.shape)[..., :channels]
        return keras.ops.moveaxis(cut, -1, inputs[-1])

    def obstacle(self, shape: Sequence[int], inputs: Axes | None) -> str | None:
        if inputs is None:
            return "its inputs are not summed over: 2 of 4 would bring nothing"
        channels = shape[inputs[-1]]
        if channels <= 2:
            return f"it has {channels} input channels, of which 2 in 4 would stay"
        return None

    def target(self, shape: Sequence[int], sparsity: float, inputs: Axes | None) -> float:
        assert inputs is not None
        channels = shape[inputs[-1]]
        groups, rest = divmod(channels, 4)
        return (2 * groups + max(0, rest - 2)) / channels


@dataclass(frozen=True)
class Block(Pattern):
    """Blocks of the kernel's matrix, inputs by outputs, are zero as a whole.

    ``height`` counts inputs, ``width`` outputs; a convolution's window and input channels are the
    inputs. A block's score is the average of its weights'; one at an edge may be smaller.
    """

    height: int
    width: int

    def __str__(self) -> str:
        return f"{self.height}x{self.width}"

    def choose(self, scores: Any, schedule: Schedule, step: Any, inputs: Axes | None) -> Any:
        import tensorflow as tf

        assert inputs is not None
        order = [*inputs, *(axis for axis in range(len(scores.shape)) if axis not in inputs)]
        turned = tf.transpose(scores, order)
        rows = math.prod(scores.shape[axis] for axis in inputs)
        matrix = tf.reshape(turned, [rows, -1])
        stays = _highest(self._averages(matrix), schedule, step)
        whole = tf.repeat(tf.repeat(stays, self.height, axis=0), self.width, axis=1)
        cut = tf.reshape(whole[:rows, : matrix.shape[1]], turned.shape)
        return tf.transpose(cut, [order.index(axis) for axis in range(len(order))])

    def obstacle(self, shape: Sequence[int], inputs: Axes | None) -> str | None:
        if inputs is None:
            return "it is no matrix of inputs by outputs"
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


def _highest(scores: Any, schedule: Schedule, step: Any) -> Any:
    """Return True for as many of the highest scores as stay at a step, at least one."""
    import tensorflow as tf

    flat = tf.reshape(scores, [-1])
    size = int(flat.shape[0])
    ordered, order = tf.math.top_k(flat, k=size)
    last = kept_at(schedule, step, size) - 1
    lowest = tf.gather(ordered, last)
    # Among equals top_k puts the lower index first, so the last one kept bounds the others.
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
            "This is no pattern of zeros.",
            expected='"unstructured", "2:4" (of each 4 input channels 2 stay) or "1x16" (blocks of '
            "1 input by 16 outputs)",
            received=repr(name),
        )
    return Block(int(block[1]), int(block[2]))


def scores_of(weights: Any, criterion: Criterion = "magnitude") -> Any:
    """Return a score for each weight: its magnitude, or its share by LAMP.

    Weights that are NaN have the highest score, since a mask must not hide them.
    """
    import tensorflow as tf

    scores = _lamp(weights) if criterion == "lamp" else tf.abs(weights)
    lost = tf.logical_or(tf.math.is_nan(scores), tf.math.is_nan(weights))
    return tf.where(lost, scores.dtype.max, scores)


def require_criterion(criterion: object) -> None:
    """Refuse anything but the name of a criterion."""
    if criterion not in get_args(Criterion):
        raise UserError(
            "This is no criterion for pruning.",
            expected='"magnitude" or "lamp"',
            received=repr(criterion),
        )


def _lamp(weights: Any) -> Any:
    """Return each weight's square as a share of its kernel's that are not smaller.

    Inside a kernel the order is that of magnitude. From kernel to kernel it does not depend on
    their scale, which after a normalization means nothing (Lee et al., 2021).
    """
    import tensorflow as tf

    squares = tf.reshape(tf.square(tf.cast(weights, tf.float32)), [-1])
    order = tf.argsort(squares, direction="DESCENDING", stable=True)
    descending = tf.gather(squares, order)
    shares = tf.math.divide_no_nan(descending, tf.cumsum(descending))
    size = tf.shape(squares)
    return tf.reshape(tf.scatter_nd(order[:, None], shares, size), tf.shape(weights))
