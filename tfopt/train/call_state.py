"""Give both computations of a recomputed call the same values of variables.

Variables are read as before the call, and assignments are kept in ``updated`` until ``write``. The
second computation never reads a variable: TensorFlow's graph optimizer may put that read after the
optimizer's assignment. Importing this file imports Keras.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import keras
import tensorflow as tf

from tfopt.errors import UserError
from tfopt.keras_internals import stored


class State(keras.StatelessScope):  # type: ignore[misc]
    """A scope in which variables are read once, and assignments are deferred.

    ``before`` maps a variable's id to the variable and its value at the start of the call.
    """

    def __init__(self, layer: Any, before: dict[int, tuple[Any, Any]] | None = None) -> None:
        super().__init__(collect_losses=True, initialize_variables=False)
        self.layer = layer
        self.before = dict(before or {})
        self.updated: dict[int, Any] = {}
        self._graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()

    def get_current_value(self, variable: Any) -> Any:
        """Return the value of a variable in this call."""
        key = id(variable)
        if key not in self.state_mapping:
            if key not in self.before:
                self.before[key] = (variable, self._outside(variable))
            _, value = self.before[key]
            with self._own_graph():
                # Not in the graph of a loop's body, which ends before the call.
                self.state_mapping[key] = _as_read(variable, value) if variable.trainable else value
        return self.state_mapping[key]

    def add_update(self, update: tuple[Any, Any]) -> None:
        variable, value = update
        if variable.trainable:
            raise _cannot_repeat(self.layer, f"it assigns the trainable {variable.path}")
        if self._inside_another_graph():
            raise _cannot_repeat(
                self.layer, f"it assigns {variable.path} inside a loop or a condition"
            )
        # An assigned variable has no gradient.
        super().add_update((variable, tf.stop_gradient(value)))
        self.updated[id(variable)] = variable

    def write(self) -> None:
        """Carry out the assignments of the call, outside of the scope."""
        for key, variable in self.updated.items():
            variable.assign(self.state_mapping[key])

    def _outside(self, variable: Any) -> Any:
        if stored(variable) is None:
            _initialise_waiting()
        if isinstance(self.original_scope, State):
            return self.original_scope.get_current_value(variable)
        with self._own_graph():
            return tf.convert_to_tensor(stored(variable))

    def _own_graph(self) -> Any:
        return self._graph.as_default() if self._inside_another_graph() else nullcontext()  # type: ignore[union-attr]

    def _inside_another_graph(self) -> bool:
        if self._graph is None:
            return False
        return tf.compat.v1.get_default_graph() is not self._graph


def _as_read(variable: Any, value: Any) -> Any:
    """Return an earlier value of a variable with the gradient of a read of the variable."""

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def read() -> Any:
        tf.convert_to_tensor(stored(variable))  # a gradient tape records this read

        def gradient(upstream: Any, variables: Any = None) -> Any:
            return [], [upstream]

        return tf.identity(value), gradient

    return read()


def _initialise_waiting() -> None:
    """Initialise variables created in the call, such as Keras's global seed generator.

    Keras would use the initial value, in every step.
    """
    now, outermost = keras.StatelessScope(initialize_variables=False), keras.StatelessScope()
    with now, tf.init_scope(), outermost:
        # Keras initialises waiting variables at the end of an outermost scope. Leaving ``now``
        # restores the scope of before.
        outermost.original_scope = None


def _cannot_repeat(layer: Any, why: str) -> UserError:
    name = f"{type(layer).__name__} {layer.path or layer.name!r}"
    return UserError(
        f"{name} cannot be recomputed in the backward pass: {why}.",
        expected="layers whose results depend on their inputs, weights, and Keras's own seeds",
        received=why,
        fix="leave it out: tfopt.remat(model, layers=...) chooses the layers to recompute",
    )
