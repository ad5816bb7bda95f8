"""The constraint that keeps a kernel's zeros where they are, and leaves its other weights free.

Guarantees: a weight that was zero when this was put on is zero after every step, so pruning that
was made final is not undone by what comes after it; everything happens inside the compiled step.

This file imports Keras and TensorFlow at its top, since its class only exists inside Keras:
import it inside functions. Importing it registers the class, which is what
``keras.models.load_model`` needs for a file saved with it on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from tfopt.compression.held.constraint import Held, replicated


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
