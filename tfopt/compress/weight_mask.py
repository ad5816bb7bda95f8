"""The constraint that keeps chosen weights of a kernel at zero during the training.

This file imports Keras and TensorFlow: import it inside functions. It registers the class for
files saved with masks.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import keras
import tensorflow as tf

from tfopt.compress.constraints import Constraint, replicated
from tfopt.compress.kernels import kernel_name
from tfopt.compress.patterns import (
    UNSTRUCTURED,
    Axes,
    Criterion,
    Pattern,
    as_pattern,
    highest,
    scores_of,
)
from tfopt.compress.schedules import Schedule, schedule_from_config


@dataclass(frozen=True)
class _State:
    """A kernel's mask, and the number of the next batch."""

    kernel: Any
    inputs: Axes | None
    mask: Any
    step: Any


_Scores = Callable[[], Any]


class SharedChoice:
    """One ranking of the weights of all kernels: more important layers keep more.

    The schedule counts the weights of all kernels that still train with these masks; a kernel keeps
    at least one. The ranking is computed once per step, by the first kernel to be updated.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._members: list[tuple[_State, _Scores]] = []
        self._ranked_at: Any = None
        self._ranker: _State | None = None
        self._graph: Callable[[], Any] = lambda: None  # of the step that is traced

    def add(self, member: _State, scores: _Scores) -> None:
        """Add a kernel."""
        self._members.append((member, scores))

    def begin(self, step: int) -> None:
        """Apply the masks of a step before its training. Not for a compiled step."""
        first = self._members[0][0].mask
        strategy = getattr(first, "distribute_strategy", None) or tf.distribute.get_strategy()
        with strategy.scope():
            self._ranked_at = replicated(tf.constant(0, tf.int64), "ranked_at")
        latest = self._schedule.last_due(step)
        if latest is not None:
            self._rank(tf.constant(latest, tf.int64))
            for member, _ in self._members:
                member.kernel.assign(tf.where(member.mask, member.kernel.value, 0))

    def choose(self, member: _State, step: Any) -> Any:
        """Return True for the weights of one kernel that are kept from a step on."""
        assert self._ranked_at is not None, "begin() comes first"
        # This graph is the branch of one kernel, in that of a step.
        graph = getattr(tf.compat.v1.get_default_graph(), "outer_graph", None)
        if graph is None or self._graph() is not graph:
            self._ranker = member
            self._graph = (lambda: None) if graph is None else weakref.ref(graph)
        if self._ranker is member:  # the others only read: each would hold the whole ranking
            done = tf.equal(self._ranked_at.read_value(), step)
            tf.cond(done, lambda: tf.constant(True), lambda: self._rank(step))
        return member.mask.read_value()

    def _rank(self, step: Any) -> Any:
        """Choose the masks of the kernels that take part.

        A kernel that was frozen keeps its zeros, and one that was pruned anew has another mask.
        """
        masks, scores, best, place = [], [], [], 0
        for member, scores_of_kernel in self._members:
            kernel = member.kernel
            if kernel.trainable and getattr(kernel.constraint, "shared", self) is self:
                own = tf.reshape(tf.cast(scores_of_kernel(), tf.float32), [-1])
                masks.append(member.mask)
                scores.append(own)
                best.append(place + tf.argmax(own, output_type=tf.int32))
                place += math.prod(kernel.shape)
        kept = highest(tf.concat(scores, axis=0), self._schedule, step)
        kept = tf.tensor_scatter_nd_update(kept, tf.stack(best)[:, None], [True] * len(best))
        parts = tf.split(kept, [math.prod(mask.shape) for mask in masks])
        for mask, part in zip(masks, parts, strict=True):
            mask.assign(tf.reshape(part, mask.shape))
        self._ranked_at.assign(step)
        return tf.constant(True)


@keras.saving.register_keras_serializable(package="tfopt")
class WeightMask(Constraint):
    """A kernel constraint with a mask; the layer's own constraint, if any, is applied first.

    Masks and step counts are not weights of the layer: ``get_config`` saves the step, and the first
    call restores a loaded mask from the kernel, as its largest weights at the current sparsity. In
    a compiled step that is before the first update; with ``run_eagerly=True`` a loaded kernel has
    had one update by then.

    Example:
        layer.kernel_constraint = WeightMask(ConstantSparsity(0.8))

    Args:
        schedule: The sparsity by steps.
        inner: The layer's own constraint.
        step: The number of the next batch, counted from 1.
        pattern: The weights that are zero together.
        criterion: The importance of a weight, as in ``prune``.
        inputs: The axes of a kernel that are summed over, by the kernel's name, for patterns.
        shared: The ranking across the model. It is not saved: a loaded mask is fixed until
            ``prune`` is called again.
        stays: Whether the mask is fixed.
    """

    def __init__(
        self,
        schedule: Schedule,
        inner: Any = None,
        step: int = 1,
        *,
        pattern: Pattern = UNSTRUCTURED,
        criterion: Criterion = "magnitude",
        inputs: Mapping[str, Axes | None] | None = None,
        shared: SharedChoice | None = None,
        stays: bool = False,
    ) -> None:
        super().__init__(inner, step)
        self.schedule = schedule
        self.pattern = pattern
        self.criterion = criterion
        self.inputs = dict(inputs or {})
        self.shared = shared
        self.stays = stays

    def bind(self, kernel: Any) -> None:
        """Apply the mask of the current step to a kernel. Not for a compiled step."""
        kernel.assign(tf.where(self._state(kernel).mask, kernel.value, 0))

    def apply_final(self, kernel: Any) -> None:
        """Write the masked values into the kernel."""
        if id(kernel) in self._states:
            self.bind(kernel)

    def __call__(self, w: Any) -> Any:
        state = self._state(w)
        value = self._after_inner(w)
        step = tf.convert_to_tensor(state.step.assign_add(1))
        mask = state.mask.read_value() if self.stays else self._mask_for(state, value, step)
        # zeros_like is faster than broadcasting 0 on a CPU.
        return tf.where(mask, value, tf.zeros_like(value))

    @property
    def step(self) -> int:
        for state in self._states.values():
            return int(state.step.numpy())
        return self._first_step

    @property
    def unfinished(self) -> str | None:
        """Return the position of an unfinished schedule, or None."""
        if self.stays or self.step >= self.schedule.last:
            return None
        return f"at step {self.step - 1} of a schedule that ends at {self.schedule.last}"

    def _mask_for(self, state: _State, value: Any, step: Any) -> Any:
        def choose() -> Any:
            if self.shared is not None:
                return self.shared.choose(state, step)
            scores = scores_of(value, self.criterion)
            chosen = self.pattern.choose(scores, self.schedule, step, state.inputs)
            state.mask.assign(chosen)
            return chosen

        return tf.cond(self.schedule.due(step), choose, state.mask.read_value)

    def _new_state(self, kernel: Any, local: Any) -> _State:
        step, inputs = self.step, next(iter(self.inputs.values()), None)
        if len(self.inputs) > 1:
            inputs = self.inputs[kernel_name(kernel)]
        mask = replicated(self._mask_at(local, step, inputs), "weight_mask")
        counter = replicated(tf.constant(step, tf.int64), "weight_mask_step")
        state = _State(kernel, inputs, mask, counter)
        if self.shared is not None:
            self.shared.add(state, lambda: scores_of(self._after_inner(kernel), self.criterion))
        return state

    def _fit_state(self, state: _State, local: Any) -> None:
        if tf.reduce_all(tf.logical_or(state.mask, tf.equal(local, 0))):
            return
        if self.shared is not None:
            state.mask.assign(tf.not_equal(local, 0))
        else:
            step = int(state.step.numpy())
            state.mask.assign(self._mask_at(local, step, state.inputs))

    def _mask_at(self, value: Any, step: int, inputs: Axes | None) -> Any:
        latest = self.schedule.last_due(step)
        if self.stays:
            return tf.not_equal(value, 0)
        if latest is None or self.shared is not None:
            return tf.ones(value.shape, tf.bool)
        scores = scores_of(tf.convert_to_tensor(value), self.criterion)
        now = tf.constant(latest, tf.int64)
        return self.pattern.choose(scores, self.schedule, now, inputs)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "schedule": asdict(self.schedule),
            "pattern": str(self.pattern),
            "criterion": self.criterion,
            "inputs": {name: axes and list(axes) for name, axes in self.inputs.items()},
            "stays": self.stays or self.shared is not None,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> WeightMask:
        read = {
            "schedule": schedule_from_config(config["schedule"]),
            "pattern": as_pattern(config["pattern"]),
            "inputs": {name: axes and tuple(axes) for name, axes in config["inputs"].items()},
        }
        return cls(**{**config, **read})
