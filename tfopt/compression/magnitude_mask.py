"""The constraint that keeps the smallest weights of a kernel at zero while it is trained.

Guarantees: exactly what the schedule and the pattern say is kept, the largest by magnitude (of
equal ones those that come first); between two choices the mask does not change; everything happens
inside the compiled step, and a step at which no choice is due only counts and multiplies.

This file imports Keras and TensorFlow at its top, since its class only exists inside Keras:
import it inside functions. Importing it registers the class, which is what
``keras.models.load_model`` needs for a file saved with masks on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from tfopt.compression.kernels import Axes, kernel_name
from tfopt.compression.patterns import UNSTRUCTURED, Pattern, pattern_from_config
from tfopt.compression.schedules import Schedule, schedule_from_config

# float32 counts whole numbers exactly up to here.
_FLOAT32_EXACT = 2**24


def magnitude_mask(
    weights: Any,
    schedule: Schedule,
    step: Any,
    pattern: Pattern = UNSTRUCTURED,
    inputs: Axes | None = None,
) -> Any:
    """True for the weights kept at ``step``: a boolean tensor of the same shape."""
    magnitudes = tf.abs(weights)
    # A weight that has become NaN stays, and stays visible: a mask must not hide a divergence.
    magnitudes = tf.where(tf.math.is_nan(magnitudes), magnitudes.dtype.max, magnitudes)
    return pattern.choose(magnitudes, lambda size: _kept(size, schedule, step), inputs)


def _kept(size: int, schedule: Schedule, step: Any) -> Any:
    """How many of so many to keep: tfmot's rounding, in the precision that counts them right."""
    dtype = tf.float32 if size < _FLOAT32_EXACT else tf.float64
    kept = tf.round(tf.cast(size, dtype) * (1 - schedule.at(step, dtype)))
    return tf.cast(tf.maximum(kept, 1), tf.int32)


@dataclass(frozen=True)
class _State:
    """A kernel's mask, and the batch that will be trained next. The kernel is held by
    reference so that its id, under which the state is filed, is not given to another."""

    kernel: Any
    inputs: Axes | None
    mask: Any
    step: Any


@keras.saving.register_keras_serializable(package="tfopt")
class MagnitudeMask(keras.constraints.Constraint):  # type: ignore[misc]
    """A kernel constraint holding a magnitude mask, behind the layer's own constraint if any.

    One instance can serve several kernels (attention layers have one constraint for all of
    theirs); each has a mask and a step count of its own. They are not among the layer's
    weights: ``get_config`` saves the step, and a loaded mask is recovered from the kernel,
    whose largest weights at the sparsity reached are exactly those that were kept. The first
    call does that; in a compiled step it comes before the first update. Trained with
    ``run_eagerly=True``, a loaded kernel has already had one update by then.

    Args:
        inputs: Which axes of each kernel are summed over, by the kernel's name; a pattern is
            along them.
    """

    def __init__(
        self,
        schedule: Schedule,
        inner: Any = None,
        step: int = 1,
        *,
        pattern: Pattern = UNSTRUCTURED,
        inputs: Mapping[str, Axes | None] | None = None,
    ) -> None:
        self.schedule = schedule
        self.pattern = pattern
        self.inputs = dict(inputs or {})
        self.inner = keras.constraints.get(inner)
        self._first_step = step
        self._states: dict[int, _State] = {}

    def bind(self, kernel: Any) -> None:
        """Gives a kernel the mask of the present step, and applies it. Not for a compiled step."""
        kernel.assign(tf.where(self._state(kernel).mask, kernel.value, 0))

    def settle(self, kernel: Any) -> None:
        """Writes the mask's zeros into the kernel; one not trained since loading has them."""
        if id(kernel) in self._states:
            self.bind(kernel)

    def __call__(self, w: Any) -> Any:
        state = self._state(w)
        value = tf.convert_to_tensor(w if self.inner is None else self.inner(w))
        step = tf.convert_to_tensor(state.step.assign_add(1))

        def choose() -> Any:
            chosen = magnitude_mask(value, self.schedule, step, self.pattern, state.inputs)
            state.mask.assign(chosen)
            return chosen

        mask = tf.cond(self.schedule.due(step), choose, state.mask.read_value)
        return tf.where(mask, value, 0)

    @property
    def step(self) -> int:
        """The batch that will be trained next, counted from 1."""
        for state in self._states.values():
            return int(state.step.numpy())
        return self._first_step

    def _state(self, kernel: Any) -> _State:
        if id(kernel) not in self._states:
            if tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context():
                # Variables that the replicas mirror are made where the replicas meet.
                meet = tf.distribute.get_replica_context().merge_call
                meet(lambda strategy: self._add_state(kernel))
            else:
                self._add_state(kernel)
        return self._states[id(kernel)]

    def _add_state(self, kernel: Any) -> None:
        # Lifted out of a step being compiled, which must not contain a variable's birth.
        with tf.init_scope():
            step, value, inputs = self.step, kernel.value, self._inputs_of(kernel)
            strategy = getattr(value, "distribute_strategy", None)
            if strategy is None:
                variables = _variables(self._mask_at(value, step, inputs), step)
            else:
                local = strategy.experimental_local_results(value)[0]
                with strategy.scope():
                    variables = _variables(self._mask_at(local, step, inputs), step)
            self._states[id(kernel)] = _State(kernel, inputs, *variables)

    def _inputs_of(self, kernel: Any) -> Axes | None:
        """By name, which is fixed where attention has several; another layer's may change."""
        if len(self.inputs) <= 1:
            return next(iter(self.inputs.values()), None)
        return self.inputs[kernel_name(kernel)]

    def _mask_at(self, value: Any, step: int, inputs: Axes | None) -> Any:
        latest = self.schedule.last_due(step)
        if latest is None:
            return tf.ones(value.shape, tf.bool)
        now = tf.constant(latest, tf.int64)
        return magnitude_mask(tf.convert_to_tensor(value), self.schedule, now, self.pattern, inputs)

    def get_config(self) -> dict[str, Any]:
        return {
            "schedule": self.schedule.get_config(),
            "inner": keras.constraints.serialize(self.inner),
            "step": self.step,
            "pattern": self.pattern.get_config(),
            "inputs": {name: axes and list(axes) for name, axes in self.inputs.items()},
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> MagnitudeMask:
        return cls(
            schedule_from_config(config["schedule"]),
            config["inner"],
            config["step"],
            pattern=pattern_from_config(config["pattern"]),
            inputs={name: axes and tuple(axes) for name, axes in config["inputs"].items()},
        )


def _variables(mask: Any, step: int) -> tuple[Any, Any]:
    """Mask and step as variables that every replica updates for itself.

    All replicas see the same weights, so they choose the same mask; an aggregation would need
    the replicas to meet, which is forbidden inside the condition under which masks change.
    """
    settings = {"trainable": False, "aggregation": tf.VariableAggregation.NONE}
    return (
        tf.Variable(mask, name="magnitude_mask", **settings),
        tf.Variable(step, dtype=tf.int64, name="magnitude_mask_step", **settings),
    )
