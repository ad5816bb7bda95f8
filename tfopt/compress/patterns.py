"""Patterns of zeros: which weights of a kernel may be zero together.

Of a score for each weight, a pattern keeps the highest, and of equal ones those that come first. A
kernel comes with its ``inputs``: the axes that are summed over, the input channels last.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from tfopt.compress.kernels import Axes
from tfopt.compress.schedules import ConstantSparsity, Schedule, as_schedule
from tfopt.errors import UserError, keep_plain, require_count

Kept = Callable[[int], Any]
"""How many of so many stay, as a scalar tensor."""


@dataclass(frozen=True)
class Pattern:
    """The base of all patterns: by default any kernel can have it, to a schedule's sparsity."""

    def choose(self, scores: Any, kept: Kept, inputs: Axes | None) -> Any:
        """Return True for the weights that stay."""
        raise TypeError(f"{type(self).__name__} does not define choose(scores, kept, inputs)")

    def obstacle(self, shape: Sequence[int], inputs: Axes | None) -> str | None:
        """Return why a kernel of this shape cannot have the pattern; None if it can."""
        return None

    def fixed(self) -> float | None:
        """Return the sparsity that the pattern itself means; None where a schedule says it."""
        return None

    def target(self, shape: Sequence[int], sparsity: float, inputs: Axes | None) -> float:
        """Return what a kernel of this shape can have of that sparsity."""
        return sparsity

    @property
    def together(self) -> int:
        """Return how many weights become zero at once: a target may be missed by that many."""
        return 1

    def get_config(self) -> dict[str, Any]:
        """Return plain data from which :func:`pattern_from_config` makes an equal pattern."""
        return {"kind": type(self).__name__, **asdict(self)}


@dataclass(frozen=True)
class Unstructured(Pattern):
    """Any weight may be zero: the most accurate pattern, which brings size and no speed.

    Example:
        tfopt.prune(model, 0.8, pattern=Unstructured())
    """

    def choose(self, scores: Any, kept: Kept, inputs: Axes | None) -> Any:
        return _highest(scores, kept)


@dataclass(frozen=True)
class NOfM(Pattern):
    """At most ``n`` of each ``m`` neighbouring input channels stay: 2 of 4 for sparse tensor cores.

    A last group with fewer than ``m`` channels keeps ``n`` of them too, as an engine that fills
    it up with zeros needs it.

    Example:
        tfopt.prune(model, pattern=NOfM(2, 4))
    """

    n: int = 2
    m: int = 4

    def __post_init__(self) -> None:
        keep_plain(self)
        require_count("NOfM.n", self.n)
        require_count("NOfM.m", self.m)
        if self.n >= self.m:
            raise UserError(
                "NOfM leaves nothing to prune.",
                expected="n < m, such as n=2, m=4: two of each four stay",
                received=f"n={self.n}, m={self.m}",
            )

    def choose(self, scores: Any, kept: Kept, inputs: Axes | None) -> Any:
        import tensorflow as tf

        assert inputs is not None
        order = [axis for axis in range(len(scores.shape)) if axis != inputs[-1]] + [inputs[-1]]
        turned = tf.transpose(scores, order)
        channels = turned.shape[-1]
        # What is filled up is worth less than any weight.
        missing = -channels % self.m
        edges = [[0, 0]] * (len(order) - 1) + [[0, missing]]
        filled = tf.pad(turned, edges, constant_values=scores.dtype.min)
        groups = tf.reshape(filled, [-1, self.m])
        stays = tf.reshape(_ranks(groups) < self.n, filled.shape)
        back = [order.index(axis) for axis in range(len(order))]
        return tf.transpose(stays[..., :channels], back)

    def obstacle(self, shape: Sequence[int], inputs: Axes | None) -> str | None:
        if inputs is None:
            return f"its inputs are not summed over: {self.n} of {self.m} would bring nothing"
        channels = shape[inputs[-1]]
        if channels <= self.n:
            return f"it has {channels} input channels, of which {self.n} in {self.m} would stay"
        return None

    def fixed(self) -> float | None:
        return 1 - self.n / self.m

    def target(self, shape: Sequence[int], sparsity: float, inputs: Axes | None) -> float:
        assert inputs is not None
        channels = shape[inputs[-1]]
        groups, rest = divmod(channels, self.m)
        return (groups * (self.m - self.n) + max(0, rest - self.n)) / channels


@dataclass(frozen=True)
class Block(Pattern):
    """Blocks of the kernel's matrix, inputs by outputs, are zero as a whole.

    ``height`` counts inputs, ``width`` outputs; a convolution's window and input channels are the
    inputs. A block's score is the average or the maximum of its weights'; one at an edge may be
    smaller.

    Example:
        tfopt.prune(model, 0.5, pattern=Block(1, 16, pooling="max"))
    """

    height: int = 1
    width: int = 16
    pooling: Literal["average", "max"] = "average"

    def __post_init__(self) -> None:
        keep_plain(self)
        require_count("Block.height", self.height)
        require_count("Block.width", self.width)
        if self.pooling not in ("average", "max"):
            raise UserError(
                "Block.pooling is unknown.",
                expected='"average" or "max"',
                received=repr(self.pooling),
            )

    def choose(self, scores: Any, kept: Kept, inputs: Axes | None) -> Any:
        import tensorflow as tf

        assert inputs is not None
        order = [*inputs, *(axis for axis in range(len(scores.shape)) if axis not in inputs)]
        turned = tf.transpose(scores, order)
        rows = math.prod(scores.shape[axis] for axis in inputs)
        matrix = tf.reshape(turned, [rows, -1])
        stays = _highest(self._pooled(matrix), kept)
        whole = tf.repeat(tf.repeat(stays, self.height, axis=0), self.width, axis=1)
        cut = tf.reshape(whole[:rows, : matrix.shape[1]], turned.shape)
        return tf.transpose(cut, [order.index(axis) for axis in range(len(order))])

    def obstacle(self, shape: Sequence[int], inputs: Axes | None) -> str | None:
        if inputs is None:
            return "it is no matrix of inputs by outputs"
        rows = math.prod(shape[axis] for axis in inputs)
        columns = math.prod(shape) // rows
        if rows < self.height or columns < self.width:
            return (
                f"a block of {self.height} by {self.width} is larger than the kernel, "
                f"{rows} by {columns}"
            )
        return None

    @property
    def together(self) -> int:
        return self.height * self.width

    def _pooled(self, matrix: Any) -> Any:
        import tensorflow as tf

        rows, columns = matrix.shape
        edges = [[0, -rows % self.height], [0, -columns % self.width]]

        def in_blocks(values: Any, filling: Any = 0) -> Any:
            padded = tf.pad(values, edges, constant_values=filling)
            high, wide = padded.shape
            shape = [high // self.height, self.height, wide // self.width, self.width]
            return tf.reshape(padded, shape)

        if self.pooling == "max":
            return tf.reduce_max(in_blocks(matrix, matrix.dtype.min), axis=(1, 3))
        sizes = tf.reduce_sum(in_blocks(tf.ones_like(matrix)), axis=(1, 3))
        return tf.reduce_sum(in_blocks(matrix), axis=(1, 3)) / sizes


def _highest(scores: Any, kept: Kept) -> Any:
    """Return True for as many of the highest scores as are kept, at least one."""
    import tensorflow as tf

    flat = tf.reshape(scores, [-1])
    size = int(flat.shape[0])
    ordered, order = tf.math.top_k(flat, k=size)
    last = tf.maximum(kept(size), 1) - 1
    lowest = tf.gather(ordered, last)
    # Among equals top_k puts the lower index first, so the last one kept bounds the others.
    first_equals = tf.logical_and(flat == lowest, tf.range(size) <= tf.gather(order, last))
    return tf.reshape(tf.logical_or(flat > lowest, first_equals), scores.shape)


def _ranks(groups: Any) -> Any:
    """Return for each score of each group how many come before it: higher, or equal and earlier."""
    import tensorflow as tf

    own, other = groups[:, :, None], groups[:, None, :]
    place = tf.range(groups.shape[1])
    earlier = tf.logical_and(own == other, place[None, None, :] < place[None, :, None])
    before = tf.logical_or(other > own, earlier)
    return tf.reduce_sum(tf.cast(before, tf.int32), axis=2)


UNSTRUCTURED = Unstructured()
_SHORT = re.compile(r"(\d{1,6})([:x])(\d{1,6})", re.ASCII)
_KINDS = {kind.__name__: kind for kind in (Unstructured, NOfM, Block)}


def pattern_from_config(config: Mapping[str, Any]) -> Pattern:
    """Return the pattern that :meth:`Pattern.get_config` described."""
    settings = dict(config)
    return _KINDS[settings.pop("kind")](**settings)


def as_pattern(pattern: Pattern | str) -> Pattern:
    """Return a pattern as it is, or the one of a short name: "unstructured", "2:4", "1x16"."""
    if isinstance(pattern, Pattern):
        return pattern
    found = _SHORT.fullmatch(pattern) if isinstance(pattern, str) else None
    if pattern == "unstructured":
        return UNSTRUCTURED
    if found is None:
        raise UserError(
            "This is no pattern of zeros.",
            expected='"unstructured", "2:4" (of each 4 input channels 2 stay), "1x16" (blocks of 1 '
            "input by 16 outputs), or Unstructured(), NOfM(...), Block(...)",
            received=repr(pattern),
        )
    first, kind, second = int(found[1]), found[2], int(found[3])
    return NOfM(first, second) if kind == ":" else Block(first, second)


def schedule_for(sparsity: float | Schedule | None, pattern: Pattern) -> Schedule:
    """Return the schedule that was given, or the one that the pattern means; they must agree."""
    fixed = pattern.fixed()
    if sparsity is None:
        if fixed is None:
            raise UserError(
                "How much is to be pruned is not said.",
                expected="a sparsity such as 0.8, or a schedule",
                received="sparsity=None",
            )
        return ConstantSparsity(fixed)
    schedule = as_schedule(sparsity)
    constant = isinstance(schedule, ConstantSparsity)
    if fixed is not None and not (constant and math.isclose(schedule.sparsity, fixed)):
        raise UserError(
            f"The sparsity contradicts {pattern!r}.",
            expected=f"{fixed:g} from a step on: ConstantSparsity({fixed:g}, begin_step=...)",
            received=repr(sparsity),
            fix="leave sparsity out",
        )
    return schedule
