"""The constraint that keeps chosen weights of a kernel at zero while it is trained.

Guarantees: exactly what the schedule and the pattern say is kept, the highest by the criterion (of
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

from tfopt.compression.criteria import MAGNITUDE, Criterion, criterion_from_config
from tfopt.compression.kernels import Axes, kernel_name
from tfopt.compression.patterns import UNSTRUCTURED, Pattern, pattern_from_config
from tfopt.compression.schedules import Schedule, kept_at, schedule_from_config
from tfopt.compression.shared_choice import SharedChoice


def chosen_mask(
    scores: Any,
    schedule: Schedule,
    step: Any,
    pattern: Pattern = UNSTRUCTURED,
    inputs: Axes | None = None,
) -> Any:
    """True for the weights kept at ``step``: a boolean tensor of the scores' shape."""
    return pattern.choose(scores, lambda size: kept_at(schedule, step, size), inputs)


@dataclass(frozen=True)
class _State:
    """A kernel's mask, what its criterion remembers, and the batch that will be trained next.

    The kernel is held by reference so that its id, under which the state is filed, is not given
    to another.
    """

    kernel: Any
    inputs: Axes | None
    mask: Any
    memory: tuple[Any, ...]
    step: Any


@keras.saving.register_keras_serializable(package="tfopt")
class WeightMask(keras.constraints.Constraint):  # type: ignore[misc]
    """A kernel constraint holding a mask, behind the layer's own constraint if any.

    One instance can serve several kernels (attention layers have one constraint for all of
    theirs); each has a mask and a step count of its own. They are not among the layer's
    weights: ``get_config`` saves the step, and a loaded mask is recovered from the kernel,
    whose largest weights at the sparsity reached are exactly those that were kept. The first
    call does that; in a compiled step it comes before the first update. Trained with
    ``run_eagerly=True``, a loaded kernel has already had one update by then.

    Args:
        inputs: Which axes of each kernel are summed over, by the kernel's name; a pattern is
            along them.
        shared: The choice that this mask makes together with the model's others. It does not go
            into a file: a mask loaded from there stays as it is until ``prune`` is called again.
    """

    def __init__(
        self,
        schedule: Schedule,
        inner: Any = None,
        step: int = 1,
        *,
        pattern: Pattern = UNSTRUCTURED,
        criterion: Criterion = MAGNITUDE,
        inputs: Mapping[str, Axes | None] | None = None,
        shared: SharedChoice | None = None,
        stays: bool = False,
    ) -> None:
        self.schedule = schedule
        self.pattern = pattern
        self.criterion = criterion
        self.inputs = dict(inputs or {})
        self.inner = keras.constraints.get(inner)
        self.shared = shared
        self.stays = stays
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
        value = self._after_inner(w)
        step = tf.convert_to_tensor(state.step.assign_add(1))
        self.criterion.watch(value, state.memory)
        mask = state.mask.read_value() if self.stays else self._mask_for(state, value, step)
        masked = tf.where(mask, value, 0)
        self.criterion.remember(masked, state.memory)
        return masked

    @property
    def step(self) -> int:
        """The batch that will be trained next, counted from 1."""
        for state in self._states.values():
            return int(state.step.numpy())
        return self._first_step

    def _mask_for(self, state: _State, value: Any, step: Any) -> Any:
        def choose() -> Any:
            scores = self._scores(value, state.memory)
            if self.shared is not None:
                chosen = self.shared.choose(state, scores, step)
            else:
                chosen = chosen_mask(scores, self.schedule, step, self.pattern, state.inputs)
            state.mask.assign(chosen)
            return chosen

        return tf.cond(self.schedule.due(step), choose, state.mask.read_value)

    def _after_inner(self, kernel: Any) -> Any:
        return tf.convert_to_tensor(kernel if self.inner is None else self.inner(kernel))

    def _scores(self, value: Any, memory: tuple[Any, ...]) -> Any:
        return _visible(self.criterion.scores(value, memory), value)

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
            step, inputs = self.step, self._inputs_of(kernel)
            local, strategy = _local(kernel.value)
            with strategy.scope():
                mask = self._mask_at(local, step, inputs, kernel_name(kernel))
                first = self.criterion.first_memory(local, mask, kernel_name(kernel))
                memory = tuple(_variable(each, "weight_mask_memory") for each in first)
                counter = _variable(tf.constant(step, tf.int64), "weight_mask_step")
                state = _State(kernel, inputs, _variable(mask, "weight_mask"), memory, counter)
            self._states[id(kernel)] = state
            if self.shared is not None:
                self.shared.add(
                    state, lambda: self._scores(self._after_inner(kernel), state.memory)
                )

    def _inputs_of(self, kernel: Any) -> Axes | None:
        """By name, which is fixed where attention has several; another layer's may change."""
        if len(self.inputs) <= 1:
            return next(iter(self.inputs.values()), None)
        return self.inputs[kernel_name(kernel)]

    def _mask_at(self, value: Any, step: int, inputs: Axes | None, name: str) -> Any:
        latest = self.schedule.last_due(step)
        if self.stays:
            return tf.not_equal(value, 0)
        if latest is None or self.shared is not None:
            return tf.ones(value.shape, tf.bool)
        value = tf.convert_to_tensor(value)
        scores = _visible(self.criterion.recovered(value, name), value)
        now = tf.constant(latest, tf.int64)
        return chosen_mask(scores, self.schedule, now, self.pattern, inputs)

    def get_config(self) -> dict[str, Any]:
        return {
            "schedule": self.schedule.get_config(),
            "inner": keras.constraints.serialize(self.inner),
            "step": self.step,
            "pattern": self.pattern.get_config(),
            "criterion": self.criterion.get_config(),
            "inputs": {name: axes and list(axes) for name, axes in self.inputs.items()},
            "stays": self.stays or self.shared is not None,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> WeightMask:
        return cls(
            schedule_from_config(config["schedule"]),
            config["inner"],
            config["step"],
            pattern=pattern_from_config(config["pattern"]),
            criterion=criterion_from_config(config["criterion"]),
            inputs={name: axes and tuple(axes) for name, axes in config["inputs"].items()},
            stays=config["stays"],
        )


def _visible(scores: Any, weights: Any) -> Any:
    """A weight that has become NaN stays, and stays visible: a mask must not hide a divergence."""
    lost = tf.logical_or(tf.math.is_nan(scores), tf.math.is_nan(weights))
    return tf.where(lost, scores.dtype.max, scores)


def _local(value: Any) -> tuple[Any, Any]:
    """One replica's weights, and the strategy that mirrors them."""
    strategy = getattr(value, "distribute_strategy", None)
    if strategy is None:
        return value, tf.distribute.get_strategy()
    return strategy.experimental_local_results(value)[0], strategy


def _variable(value: Any, name: str) -> Any:
    """A variable that every replica updates for itself.

    All replicas see the same weights, so they choose the same mask; an aggregation would need
    the replicas to meet, which is forbidden inside the condition under which masks change.
    """
    return tf.Variable(value, name=name, trainable=False, aggregation=tf.VariableAggregation.NONE)
