"""Save and restore the state that a proof changes.

Importing this module imports TensorFlow and Keras.
"""

from __future__ import annotations

import random
from contextlib import ExitStack
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from tfopt.distribute.model_parts import metrics_of, optimizer_variables, optimizers_of
from tfopt.hooks import replaced
from tfopt.keras_internals import stored
from tfopt.resume.variables import (
    capture_host,
    restore_host,
    restore_values,
    values_of,
    variables_of,
)


class SavedState:
    """All state of a model that steps change, restored at the end of the block."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._saved: dict[int, tuple[Any, list[Any]]] = {}
        self._undo = ExitStack()
        self._random_state = _random_state()

    def __enter__(self) -> SavedState:
        return self

    def __exit__(self, *_: Any) -> None:
        self.restore()
        self._undo.close()

    def save(self) -> None:
        """Save all variables, those of an optimizer that is not built yet in its first step."""
        self._save([named.variable for named in variables_of(self._model)])
        for metric in metrics_of(self._model):  # also those that a custom ``metrics`` leaves out
            self._save(metric.variables)
        for optimizer in optimizers_of(self._model).values():
            if not optimizer.built:
                self._save_once_built(optimizer)

    def before(self, variable: Any) -> Any:
        """Return the saved first copy of a variable; None if it was not saved."""
        _, values = self._saved.get(id(stored(variable)), (None, [None]))
        return values[0]

    def save_random_state(self) -> None:
        """Save the current random state, in place of that of the beginning."""
        self._random_state = _random_state()

    def restore(self) -> None:
        """Restore all state, copy by copy: assigning a metric's variable needs a collective."""
        for variable, values in self._saved.values():
            restore_values(variable, values)
        _set_random_state(self._random_state)

    def change_seeds(self) -> None:
        """Set all seeds to other values."""
        random.seed(20250)
        np.random.seed(20250)
        tf.random.set_seed(20250)
        for variable, values in self._saved.values():
            if variable.dtype.is_integer and variable.shape.rank == 1:  # a generator's state
                restore_values(variable, [value + 1 for value in values])

    def _save(self, variables: list[Any]) -> None:
        for variable in map(stored, variables):
            if id(variable) not in self._saved:
                self._saved[id(variable)] = (variable, values_of(variable))

    def _save_once_built(self, optimizer: Any) -> None:
        build, strategy = optimizer.build, self._model.distribute_strategy

        def build_and_save(variables: Any) -> None:
            with tf.init_scope(), strategy.scope():
                build(variables)
            with tf.init_scope():
                self._save(optimizer_variables(optimizer))

        self._undo.enter_context(replaced(optimizer, build=build_and_save))


def _random_state() -> tuple[Any, ...]:
    eager = context.context()
    generator = getattr(eager, "_rng", None)
    state = None if generator is None else generator.getstate()
    return capture_host(), eager._seed, generator, state


def _set_random_state(state: tuple[Any, ...]) -> None:
    eager = context.context()
    of_host, eager._seed, generator, of_generator = state
    restore_host(of_host)
    eager._rng = generator
    if generator is not None:
        generator.setstate(of_generator)
