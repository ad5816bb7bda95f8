"""What all constraints share that hold something on kernels while they are trained.

Guarantees: each kernel has a state of its own, made once, where the kernel lives: on every replica
of a strategy, and outside of the step that is being compiled. Each time a step is compiled, a state
is fitted to the weights that are there: a checkpoint's, where a training is resumed by callbacks.
The layer's own constraint acts first and is kept.

This file imports Keras and TensorFlow at its top, since its class only exists inside Keras:
import it inside functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import keras
import tensorflow as tf

from tfopt.compress.kernels import kernel_name

_Setting = TypeVar("_Setting")


class Held(keras.constraints.Constraint):  # type: ignore[misc]
    """A constraint with a state for each of its kernels, behind the layer's own if any.

    One instance can serve several kernels: attention layers have one constraint for all of theirs.
    A state is not among the layer's weights: what makes it must find it in the kernel's values and
    in what ``get_config`` saves, which settles them first: an average of the weights, say, may have
    been written since the last step. It keeps a reference to its kernel, so that the id, under
    which it is filed, is not given to another.
    """

    def __init__(self, inner: Any = None) -> None:
        self.inner = keras.constraints.get(inner)
        self._states: dict[int, Any] = {}

    def bind(self, kernel: Any) -> None:
        """Makes a kernel's state and applies it. Not for a compiled step."""
        raise TypeError(f"{type(self).__name__} does not define bind(kernel)")

    def settle(self, kernel: Any) -> None:
        """Makes what is held final in a kernel; one not trained since loading has it already."""
        raise TypeError(f"{type(self).__name__} does not define settle(kernel)")

    def settle_all(self) -> None:
        """Makes what is held final in all kernels, for a file that is about to be written."""
        for state in self._states.values():
            self.settle(state.kernel)

    def _made(self, kernel: Any, local: Any) -> Any:
        """A new state for a kernel; ``local`` is one replica's variable."""
        raise TypeError(f"{type(self).__name__} does not define _made(kernel, local)")

    def _fit(self, state: Any, local: Any) -> None:
        """Makes a state fit the weights that are there, if others were loaded since it was made."""
        raise TypeError(f"{type(self).__name__} does not define _fit(state, local)")

    def _after_inner(self, kernel: Any) -> Any:
        return tf.convert_to_tensor(kernel if self.inner is None else self.inner(kernel))

    def _state(self, kernel: Any) -> Any:
        if id(kernel) not in self._states:
            _where_replicas_meet(lambda: self._add_state(kernel))
        elif tf.inside_function():
            _where_replicas_meet(lambda: self._fit_state(kernel))
        return self._states[id(kernel)]

    def _add_state(self, kernel: Any) -> None:
        # Lifted out of a step being compiled, which must not contain a variable's birth.
        with tf.init_scope():
            local, strategy = _local(kernel.value)
            with strategy.scope():
                self._states[id(kernel)] = self._made(kernel, local)

    def _fit_state(self, kernel: Any) -> None:
        with tf.init_scope():
            local, strategy = _local(kernel.value)
            with strategy.scope():
                self._fit(self._states[id(kernel)], tf.convert_to_tensor(local))


def setting_of(settings: Mapping[str, _Setting], kernel: Any) -> _Setting | None:
    """By name, which is fixed where attention has several; another layer's may change."""
    if len(settings) <= 1:
        return next(iter(settings.values()), None)
    return settings[kernel_name(kernel)]


def replicated(value: Any, name: str) -> Any:
    """A variable that every replica updates for itself.

    All replicas see the same weights, so they come to the same value; an aggregation would need
    the replicas to meet, which is forbidden inside a condition.
    """
    return tf.Variable(value, name=name, trainable=False, aggregation=tf.VariableAggregation.NONE)


def _where_replicas_meet(work: Callable[[], None]) -> None:
    """Variables that the replicas of a strategy mirror are made and changed there."""
    if tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context():
        tf.distribute.get_replica_context().merge_call(lambda strategy: work())
    else:
        work()


def _local(value: Any) -> tuple[Any, Any]:
    """One replica's weights, and the strategy that mirrors them."""
    strategy = getattr(value, "distribute_strategy", None)
    if strategy is None:
        return value, tf.distribute.get_strategy()
    return strategy.experimental_local_results(value)[0], strategy


# The constraint that keeps a kernel's zeros where they are, and leaves its other weights free.
#
# Guarantees: a weight that was zero when this was put on is zero after every step, so pruning
# that was made final is not undone by what comes after it; everything happens inside the compiled
# step.
#
# This file imports Keras and TensorFlow at its top, since its class only exists inside Keras:
# import it inside functions. Importing it registers the class, which is what
# ``keras.models.load_model`` needs for a file saved with it on.


@dataclass(frozen=True)
class _State:
    kernel: Any
    free: Any


@keras.saving.register_keras_serializable(package="tfopt")
class KeptZeros(Held):
    """A kernel constraint that holds its zeros, behind the layer's own constraint if any.

    Which they are is not among the layer's weights: in a loaded kernel they are its zeros, seen
    when a step is compiled; trained with ``run_eagerly=True``, it has already had one update.
    """

    def bind(self, kernel: Any) -> None:
        """Takes note of a kernel's zeros. Not for a compiled step."""
        self._state(kernel)

    def settle(self, kernel: Any) -> None:
        """Writes the zeros into a kernel that was given other weights; one only loaded has them."""
        if id(kernel) in self._states:
            kernel.assign(tf.where(self._states[id(kernel)].free, kernel.value, 0))

    def __call__(self, w: Any) -> Any:
        state = self._state(w)
        return tf.where(state.free.read_value(), self._after_inner(w), 0)

    def _made(self, kernel: Any, local: Any) -> _State:
        return _State(kernel, replicated(tf.not_equal(local, 0), "kept_zeros"))

    def _fit(self, state: _State, local: Any) -> None:
        if not tf.reduce_all(tf.logical_or(state.free, tf.equal(local, 0))):
            state.free.assign(tf.not_equal(local, 0))

    def get_config(self) -> dict[str, Any]:
        self.settle_all()
        return {"inner": keras.constraints.serialize(self.inner)}
