"""The constraint that keeps chosen weights of a kernel at zero while it is trained.

This file imports Keras and TensorFlow at its top, since its class only exists inside Keras: import
it inside functions. Importing it registers the class, which ``keras.models.load_model`` needs for a
file saved with masks on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from tfopt.compress.constraints import Held, replicated, setting_of
from tfopt.compress.criteria import MAGNITUDE, Criterion, criterion_from_config
from tfopt.compress.kernels import Axes, kernel_name
from tfopt.compress.patterns import UNSTRUCTURED, Pattern, pattern_from_config
from tfopt.compress.schedules import Schedule, kept_at, schedule_from_config
from tfopt.compress.shared_choice import SharedChoice


def chosen_mask(
    scores: Any,
    schedule: Schedule,
    step: Any,
    pattern: Pattern = UNSTRUCTURED,
    inputs: Axes | None = None,
) -> Any:
    """Return True for the weights kept at ``step``, as a boolean tensor of the scores' shape."""
    return pattern.choose(scores, lambda size: kept_at(schedule, step, size), inputs)


@dataclass(frozen=True)
class _State:
    """A kernel's mask, what its criterion remembers, and the batch that will be trained next.

    ``born`` is that batch when the state was made, and the kernel's zeros then.
    """

    kernel: Any
    inputs: Axes | None
    mask: Any
    memory: tuple[Any, ...]
    step: Any
    born: tuple[int, int]


@keras.saving.register_keras_serializable(package="tfopt")
class WeightMask(Held):
    """A kernel constraint holding a mask; the layer's own constraint, if any, acts first.

    Masks and step counts are not among the layer's weights: ``get_config`` saves the step, and a
    loaded mask is found again in the kernel, whose largest weights at the sparsity reached are
    those that were kept. The first call does that; in a compiled step it comes before the first
    update. Trained with ``run_eagerly=True``, a loaded kernel has already had one update by then.

    Example:
        layer.kernel_constraint = WeightMask(ConstantSparsity(0.8))

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
        super().__init__(inner)
        self.schedule = schedule
        self.pattern = pattern
        self.criterion = criterion
        self.inputs = dict(inputs or {})
        self.shared = shared
        self.stays = stays
        self._first_step = step

    def bind(self, kernel: Any) -> None:
        """Give a kernel the mask of the present step, and apply it. Not for a compiled step."""
        kernel.assign(tf.where(self._state(kernel).mask, kernel.value, 0))

    def settle(self, kernel: Any) -> None:
        """Write the mask's zeros into the kernel; one not trained since loading has them."""
        if id(kernel) in self._states:
            self.bind(kernel)

    def __call__(self, w: Any) -> Any:
        state = self._state(w)
        value = self._after_inner(w)
        step = tf.convert_to_tensor(state.step.assign_add(1))
        self.criterion.watch(value, state.memory)
        mask = state.mask.read_value() if self.stays else self._mask_for(state, value, step)
        # On a CPU a number is spread over all places more slowly than zeros are made for them.
        masked = tf.where(mask, value, tf.zeros_like(value))
        self.criterion.remember(masked, state.memory)
        return masked

    @property
    def step(self) -> int:
        """The batch that will be trained next, counted from 1."""
        for state in self._states.values():
            return int(state.step.numpy())
        return self._first_step

    @property
    def unfinished(self) -> str | None:
        """Where its schedule is, while masks are still to be chosen for more zeros."""
        if self.stays or self.step >= self.schedule.last:
            return None
        return f"at step {self.step - 1} of a schedule that ends at {self.schedule.last}"

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

    def _scores(self, value: Any, memory: tuple[Any, ...]) -> Any:
        return _visible(self.criterion.scores(value, memory), value)

    def _add_state(self, kernel: Any) -> None:
        super()._add_state(kernel)
        if self.shared is not None:
            state = self._state(kernel)
            self.shared.add(state, lambda: self._scores(self._after_inner(kernel), state.memory))

    def _made(self, kernel: Any, local: Any) -> _State:
        step, inputs, name = self.step, setting_of(self.inputs, kernel), kernel_name(kernel)
        mask = self._mask_at(local, step, inputs, name)
        first = self.criterion.first_memory(local, mask, name)
        memory = tuple(replicated(each, "weight_mask_memory") for each in first)
        counter = replicated(tf.constant(step, tf.int64), "weight_mask_step")
        born = step, int(tf.math.count_nonzero(tf.where(mask, local, 0) == 0))
        return _State(kernel, inputs, replicated(mask, "weight_mask"), memory, counter, born)

    def _fit(self, state: _State, local: Any) -> None:
        other = self._go_on(state, local)
        if not other and tf.reduce_all(tf.logical_or(state.mask, tf.equal(local, 0))):
            return
        if self.shared is not None:
            state.mask.assign(tf.not_equal(local, 0))
        else:
            step, name = int(state.step.numpy()), kernel_name(state.kernel)
            state.mask.assign(self._mask_at(local, step, state.inputs, name))

    def _go_on(self, state: _State, local: Any) -> bool:
        """Continue the schedule of a training whose weights were restored; return if there is one.

        Nothing was trained under this mask yet, and its kernel has more zeros than when it was
        made: those of a mask. The schedule says when it had so many.
        """
        step, zeros = state.born
        if self.stays or int(state.step.numpy()) != step:
            return False
        if self.shared is not None:
            more, share = self.shared.has_more_zeros(), self.shared.share_of_zeros()
        else:
            found = int(tf.math.count_nonzero(tf.equal(local, 0)))
            # Rounded to whole blocks, which an edge of the kernel may cut.
            share = (found - 0.51 * self.pattern.together) / math.prod(local.shape)
            more = found > zeros
        if not more:
            return False
        reached = self.schedule.first_due_with(share)
        if share < float(self.schedule.at(reached, tf.float64)) / 2:
            return False  # too few for any mask: weights may be zero by chance
        state.step.assign(max(step, reached))
        return True

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
        self.settle_all()
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
