"""Sparsity schedules: how much of a kernel is zero at which step of a training.

The arithmetic is that of tfmot's ``ConstantSparsity`` and ``PolynomialDecay``, in the same
precision. Steps count batches from 1: what is due at step t is in force when batch t is trained.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, cast

from tfopt.errors import UserError, keep_plain, require_count, within

# float32 counts whole numbers exactly up to here.
_FLOAT32_EXACT = 2**24
# How often a rising schedule chooses masks by default.
_CHOICES = 20


@dataclass(frozen=True)
class Schedule:
    """The base of all schedules: a target, and the steps at which masks are chosen anew.

    Attributes:
        sparsity: The fraction of zeros at the end.
        begin_step: The first step at which masks are chosen. 0 and 1 both mean: at once.
        end_step: The last such step; the masks stay as they are afterwards. None: no end.
        frequency: Steps from one choice to the next.
    """

    sparsity: float
    begin_step: int = 0
    end_step: int | None = None
    frequency: int = 100

    def __post_init__(self) -> None:
        keep_plain(self)
        require_sparsity("sparsity", self.sparsity)
        require_count("begin_step", self.begin_step, minimum=0)
        if self.end_step is not None:
            require_count("end_step", self.end_step, minimum=0)
        require_count("frequency", self.frequency)
        if self.end_step is not None and self.end_step < self.begin_step:
            raise UserError(
                "The pruning schedule ends before it begins.",
                expected="begin_step <= end_step",
                received=f"begin_step={self.begin_step}, end_step={self.end_step}",
            )

    def at(self, step: Any, dtype: Any) -> Any:
        """Return the sparsity at a step, as a scalar tensor."""
        raise TypeError(f"{type(self).__name__} does not define at(step, dtype)")

    def due(self, step: Any) -> Any:
        """Return whether masks are chosen anew at a step, as a scalar tensor."""
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
        """Return the last step at which masks are chosen; the first one where there is no end."""
        found = self.last_due(self.begin_step if self.end_step is None else self.end_step)
        assert found is not None
        return found

    def first_due_with(self, zeros: float) -> int:
        """Return the first step at which masks have so large a share of zeros; at most the last."""
        import tensorflow as tf

        turns = range(self.begin_step, self.last, self.frequency)
        found = bisect_left(turns, zeros, key=lambda step: float(self.at(step, tf.float64)))
        return turns[found] if found < len(turns) else self.last

    def masks_before_training(self) -> bool:
        """Return whether weights are masked before any step has been trained."""
        import tensorflow as tf

        latest = self.last_due(1)
        return latest is not None and float(self.at(latest, tf.float32)) > 0

    def get_config(self) -> dict[str, Any]:
        """Return plain data from which :func:`schedule_from_config` makes an equal schedule."""
        return {"kind": type(self).__name__, **asdict(self)}


@dataclass(frozen=True)
class ConstantSparsity(Schedule):
    """The target sparsity from ``begin_step`` on.

    Example:
        tfopt.prune(model, ConstantSparsity(0.5, begin_step=100))

    Attributes:
        sparsity: The fraction of zeros.
        begin_step: The first step at which masks are chosen. 0 and 1 both mean: at once.
        end_step: The last such step; the masks stay as they are afterwards. None: no end.
        frequency: Steps from one choice to the next.
    """

    def at(self, step: Any, dtype: Any) -> Any:
        import tensorflow as tf

        return tf.constant(self.sparsity, dtype)


@dataclass(frozen=True)
class PolynomialSparsity(Schedule):
    """A rise from ``initial_sparsity`` to the target, fast at first (Zhu & Gupta, 2017).

    ``PolynomialSparsity(0.8, begin_step=0, end_step=1000)`` leaves the rest of a training to
    recover. A step is a batch: ``epochs * math.ceil(examples / batch_size)`` in all. ``power=1``
    rises evenly. The other arguments are those of every schedule:

    Attributes:
        sparsity: The fraction of zeros at the end.
        begin_step: The first step at which masks are chosen.
        end_step: The step at which the target is reached, and the last such step.
        frequency: Steps from one choice to the next. None: twenty choices in all.

    Unlike tfmot's, it reaches its target also where ``frequency`` does not divide the window:
    ``end_step`` is always a step at which masks are chosen.
    """

    frequency: int = None  # type: ignore[assignment]  # a number as soon as it is made
    initial_sparsity: float = 0.0
    power: float = 3.0

    def __post_init__(self) -> None:
        if cast("int | None", self.frequency) is None:
            # The steps are checked before their distance is taken.
            ConstantSparsity(self.sparsity, self.begin_step, self.end_step)
            window = (self.end_step or self.begin_step) - self.begin_step
            object.__setattr__(self, "frequency", max(1, window // _CHOICES))
        super().__post_init__()
        require_sparsity("initial_sparsity", self.initial_sparsity)
        if self.initial_sparsity > self.sparsity:
            raise UserError(
                "The pruning schedule starts above its target.",
                expected=f"initial_sparsity <= {self.sparsity}",
                received=repr(self.initial_sparsity),
            )
        if not within(self.power, 0, math.inf) or not self.power:
            raise UserError(
                "The power of the pruning schedule is unusable.",
                expected="a finite number above 0",
                received=repr(self.power),
            )
        if self.end_step is None or self.end_step == self.begin_step:
            raise UserError(
                "A polynomial pruning schedule needs steps to rise over.",
                expected=f"an end_step above begin_step={self.begin_step}",
                received=repr(self.end_step),
                fix="give the step at which the target is to be reached, or use ConstantSparsity",
            )

    @property
    def _window(self) -> tuple[int, int]:
        assert self.end_step is not None
        return self.begin_step, self.end_step

    def at(self, step: Any, dtype: Any) -> Any:
        import tensorflow as tf

        begin, end = self._window
        progress = tf.clip_by_value(tf.cast(step - begin, dtype) / (end - begin), 0.0, 1.0)
        span = self.initial_sparsity - self.sparsity
        return span * tf.pow(1 - progress, self.power) + self.sparsity

    def due(self, step: Any) -> Any:
        import tensorflow as tf

        return tf.logical_or(super().due(step), step == self._window[1])

    def last_due(self, step: int) -> int | None:
        end = self._window[1]
        return end if step >= end else super().last_due(step)


def kept_at(schedule: Schedule, step: Any, size: int) -> Any:
    """Return how many of so many weights stay at a step, at least one.

    Rounded as tfmot does, in the precision that counts them right.
    """
    import tensorflow as tf

    dtype = tf.float32 if size < _FLOAT32_EXACT else tf.float64
    kept = tf.round(tf.cast(size, dtype) * (1 - schedule.at(step, dtype)))
    return tf.cast(tf.maximum(kept, 1), tf.int32)


_KINDS = {kind.__name__: kind for kind in (ConstantSparsity, PolynomialSparsity)}


def schedule_from_config(config: Mapping[str, Any]) -> Schedule:
    """Return the schedule that :meth:`Schedule.get_config` described."""
    settings = dict(config)
    return _KINDS[settings.pop("kind")](**settings)


def as_schedule(sparsity: float | Schedule) -> Schedule:
    """Return a schedule as it is; a number as that sparsity, constant from the first step on."""
    return sparsity if isinstance(sparsity, Schedule) else ConstantSparsity(sparsity)


def require_sparsity(name: str, value: object) -> None:
    """Refuse anything but a fraction in [0, 1)."""
    if not within(value, 0, 1):
        raise UserError(
            f"{name} is not a fraction of weights that can be zero.",
            expected="0 <= sparsity < 1, such as 0.8 for 80 %",
            received=repr(value),
        )
