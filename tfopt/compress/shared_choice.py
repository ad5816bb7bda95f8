"""One choice of masks for all kernels of a model: a layer that matters more keeps more.

As many weights stay as the schedule says of all kernels together that are still trained with these
masks, and at least one of each kernel. They are ranked once a step, by the first one trained in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

from tfopt.compress.schedules import Schedule, kept_at


class Member(Protocol):
    """A kernel's mask and how its weights score; ``born`` ends with the zeros it had at first."""

    @property
    def born(self) -> tuple[int, int]: ...
    @property
    def kernel(self) -> Any: ...
    @property
    def mask(self) -> Any: ...


Scores = Callable[[], Any]


class SharedChoice:
    """The bounds that a model's masks share: the lowest score that stays, and its place."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._members: list[tuple[Member, Scores]] = []
        self._bounds: tuple[Any, Any, Any] | None = None

    def add(self, member: Member, scores: Scores) -> None:
        """Add a kernel after those that are there."""
        self._members.append((member, scores))

    def begin(self, step: int) -> None:
        """Put the masks of a step in force, before it is trained. Not for a compiled step."""
        import tensorflow as tf

        with self._strategy().scope():
            self._bounds = (
                _variable(0, tf.int64, "ranked_at"),
                _variable(0, tf.float32, "lowest_kept"),
                _variable(0, tf.int32, "place_of_lowest"),
            )
        latest = self._schedule.last_due(step)
        if latest is None:
            return
        self._rank(tf.constant(latest, tf.int64))
        for member, scores, place in self._ranked():
            member.mask.assign(self._above(scores(), place))
            member.kernel.assign(tf.where(member.mask, member.kernel.value, 0))

    def choose(self, member: Member, scores: Any, step: Any) -> Any:
        """Return True for the weights of one kernel that stay from a step on."""
        import tensorflow as tf

        assert self._bounds is not None, "begin() comes first"
        place = next((place for other, _, place in self._ranked() if other is member), None)
        if place is None:
            return member.mask.read_value()
        done = tf.equal(self._bounds[0].read_value(), step)
        tf.cond(done, lambda: tf.constant(True), lambda: self._rank(step))
        return self._above(scores, place)

    def share_of_zeros(self) -> float:
        """Return how much of all kernels together is zero, less half a weight for rounding."""
        size = sum(math.prod(member.kernel.shape) for member, _, _ in self._ranked())
        return float((self._zeros() - 0.51) / size)

    def has_more_zeros(self) -> bool:
        """Return whether the kernels have more zeros than when their masks were made."""
        return self._zeros() > sum(member.born[1] for member, _, _ in self._ranked())

    def _zeros(self) -> int:
        import tensorflow as tf

        kernels = [member.kernel for member, _, _ in self._ranked()]
        return sum(int(tf.math.count_nonzero(tf.equal(k.value, 0))) for k in kernels)

    def _ranked(self) -> list[tuple[Member, Scores, int]]:
        """Return the kernels that take part, and where each begins among all their weights.

        One that was frozen since keeps the zeros that it has, and one that was pruned anew has
        another mask: neither could make up for what is counted of it.
        """
        found, place = [], 0
        for member, scores in self._members:
            kernel = member.kernel
            if kernel.trainable and getattr(kernel.constraint, "shared", self) is self:
                found.append((member, scores, place))
                place += math.prod(kernel.shape)
        return found

    def _strategy(self) -> Any:
        """Return the strategy that mirrors the kernels."""
        import tensorflow as tf

        first = self._members[0][0]
        return getattr(first.mask, "distribute_strategy", None) or tf.distribute.get_strategy()

    def _rank(self, step: Any) -> Any:
        """Find the lowest of all scores that stays, and its place among its equals."""
        import tensorflow as tf

        assert self._bounds is not None
        every = [scores() for _, scores, _ in self._ranked()]
        flat = tf.concat([tf.reshape(tf.cast(one, tf.float32), [-1]) for one in every], axis=0)
        size = int(flat.shape[0])
        ordered, order = tf.math.top_k(flat, k=size)
        last = kept_at(self._schedule, step, size) - 1
        ranked_at, lowest, place = self._bounds
        lowest.assign(tf.gather(ordered, last))
        place.assign(tf.gather(order, last))
        ranked_at.assign(step)
        return tf.constant(True)

    def _above(self, scores: Any, place: int) -> Any:
        import tensorflow as tf

        assert self._bounds is not None
        _, lowest, last = self._bounds
        flat = tf.reshape(tf.cast(scores, tf.float32), [-1])
        index = tf.range(flat.shape[0])
        equal_and_first = tf.logical_and(flat == lowest, index + place <= last)
        highest = index == tf.argmax(flat, output_type=tf.int32)
        stays = tf.logical_or(tf.logical_or(flat > lowest, equal_and_first), highest)
        return tf.reshape(stays, scores.shape)


def _variable(value: Any, dtype: Any, name: str) -> Any:
    import tensorflow as tf

    # As the masks' own variables: each replica updates its own, and all come to the same.
    settings = {"trainable": False, "aggregation": tf.VariableAggregation.NONE}
    return tf.Variable(value, dtype=dtype, name=name, **settings)
