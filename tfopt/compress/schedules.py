"""Sparsity schedules, by training steps.

The arithmetic is that of tfmot's ``ConstantSparsity`` and ``PolynomialDecay``, in the same
precision. Steps count batches from 1: a mask due at step t is in force when batch t is trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from tfopt.errors import UserError, keep_plain, real, require_count, within
from tfopt.job.parts import Facts

# The largest integer up to which float32 counts exactly
_FLOAT32_EXACT = 2**24
# The default number of choices of masks
_CHOICES = 20


@dataclass(frozen=True)
class Schedule:
    """The base class of schedules: a target, and the steps at which masks are chosen.

    Attributes:
        sparsity: The fraction of zeros at the end.
        begin_step: The first step at which masks are chosen. 0 and 1: at once.
        end_step: The last such step; masks are fixed afterwards. None: no end.
        frequency: Steps between choices. None: twenty choices in all, or every 100 steps without
            an end.
    """

    sparsity: float
    begin_step: int = 0
    end_step: int | None = None
    frequency: int = None  # type: ignore[assignment]  # set in __post_init__

    def __post_init__(self) -> None:
        keep_plain(self)
        require_sparsity("sparsity", self.sparsity)
        require_count("begin_step", self.begin_step, minimum=0)
        if self.end_step is not None:
            require_count("end_step", self.end_step, minimum=self.begin_step)
        if cast("int | None", self.frequency) is None:
            window = 2000 if self.end_step is None else self.end_step - self.begin_step
            object.__setattr__(self, "frequency", max(1, window // _CHOICES))
        require_count("frequency", self.frequency)

    def at(self, step: Any, dtype: Any) -> Any:
        """Return the sparsity at a step, as a scalar tensor."""
        raise NotImplementedError

    def due(self, step: Any) -> Any:
        """Return whether masks are chosen at a step, as a scalar tensor."""
        import tensorflow as tf

        since = step - self.begin_step
        turn = tf.logical_and(since >= 0, tf.math.floormod(since, self.frequency) == 0)
        return turn if self.end_step is None else tf.logical_and(turn, step <= self.end_step)

    def last_due(self, step: int) -> int | None:
        """Return the latest step up to ``step`` at which masks were chosen; None without one."""
        if step < self.begin_step:
            return None
        latest = step if self.end_step is None else min(step, self.end_step)
        return latest - (latest - self.begin_step) % self.frequency

    @property
    def last(self) -> int:
        """Return the last step at which masks are chosen; without an end, the first one."""
        return self.last_due(self.begin_step if self.end_step is None else self.end_step) or 0


@dataclass(frozen=True)
class ConstantSparsity(Schedule):
    """The target sparsity from ``begin_step`` on; the arguments are those of ``Schedule``.

    Example:
        tfopt.prune(model, ConstantSparsity(0.5, begin_step=100))
    """

    def at(self, step: Any, dtype: Any) -> Any:
        import tensorflow as tf

        return tf.constant(self.sparsity, dtype)


@dataclass(frozen=True)
class PolynomialSparsity(Schedule):
    """A cubic rise from ``initial_sparsity`` to the target (Zhu & Gupta, 2017).

    After ``end_step`` the rest of the training recovers accuracy. A step is a batch:
    ``epochs * math.ceil(examples / batch_size)`` in all.

    Unlike tfmot's, it reaches its target also if ``frequency`` does not divide the window: masks
    are always chosen at ``end_step``.

    Example:
        tfopt.prune(model, PolynomialSparsity(0.8, begin_step=0, end_step=1000))

    Attributes:
        initial_sparsity: The fraction of zeros at ``begin_step``.
    """

    initial_sparsity: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_sparsity("initial_sparsity", self.initial_sparsity)
        ends = self.end_step is not None and self.end_step > self.begin_step
        if not ends or self.initial_sparsity > self.sparsity:
            raise UserError(
                "PolynomialSparsity must rise over some steps.",
                expected="initial_sparsity <= sparsity, and begin_step < end_step",
                received=repr(self),
                fix="set end_step, at which the target is reached, or use ConstantSparsity",
            )

    def at(self, step: Any, dtype: Any) -> Any:
        import tensorflow as tf

        assert self.end_step is not None
        window = self.end_step - self.begin_step
        progress = tf.clip_by_value(tf.cast(step - self.begin_step, dtype) / window, 0.0, 1.0)
        span = self.initial_sparsity - self.sparsity
        return span * tf.pow(1 - progress, 3.0) + self.sparsity

    def due(self, step: Any) -> Any:
        import tensorflow as tf

        return tf.logical_or(super().due(step), step == self.end_step)

    def last_due(self, step: int) -> int | None:
        assert self.end_step is not None
        return self.end_step if step >= self.end_step else super().last_due(step)


def kept_at(schedule: Schedule, step: Any, size: int) -> Any:
    """Return the number of the ``size`` weights that are kept at a step, at least one.

    Rounded as in tfmot, in a precision that counts exactly.
    """
    import tensorflow as tf

    dtype = tf.float32 if size < _FLOAT32_EXACT else tf.float64
    kept = tf.round(tf.cast(size, dtype) * (1 - schedule.at(step, dtype)))
    return tf.cast(tf.maximum(kept, 1), tf.int32)


def schedule_from_config(config: Mapping[str, Any]) -> Schedule:
    """Return the schedule of a dict of its fields."""
    kind = PolynomialSparsity if "initial_sparsity" in config else ConstantSparsity
    return kind(**config)


def require_sparsity(name: str, value: object) -> None:
    """Raise unless ``value`` is a fraction in [0, 1)."""
    if not within(value, 0, 1):
        raise UserError(
            f"{name} is not a fraction of zeros.",
            expected="0 <= sparsity < 1, such as 0.8 for 80 %",
            received=repr(value),
        )


def require_share(name: str, value: object) -> None:
    """Raise unless ``value`` is a fraction in [0, 1]."""
    number = real(value)
    if number is None or not 0 <= number <= 1:
        raise UserError(
            f"{name} is not a fraction of the training.",
            expected="0 <= fraction <= 1",
            received=repr(value),
        )


def training_steps(facts: Facts, transform: str, fix: str) -> int:
    """Return the steps of the training; raise if its length is unknown."""
    if facts.steps_per_epoch is None:
        raise UserError(
            f"{transform} needs the length of the training.",
            expected="a job with steps_per_epoch, or data of known length",
            received="steps_per_epoch=None",
            fix=f"set Job.steps_per_epoch, or use {fix}",
        )
    return facts.steps_per_epoch * facts.epochs
