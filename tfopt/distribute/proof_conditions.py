"""Let one device and the replicas compute alike in a proof, from one state that is restored later.

Importing this module imports TensorFlow and Keras.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from tfopt.distribute.model_parts import (
    metrics_of,
    optimizer_variables,
    optimizers_of,
    unsynchronized,
)
from tfopt.hooks import putting, replaced
from tfopt.keras_internals import stored
from tfopt.report.format import few
from tfopt.resume.variables import (
    capture_host,
    restore_host,
    restore_values,
    values_of,
    variables_of,
)

_SEED = (7, 7)
_OF_A_DRAW = ("mean", "stddev", "minval", "maxval", "dtype")


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


@contextmanager
def moving_statistics(model: Any) -> Iterator[list[str]]:
    """Let unsynchronized normalization layers use their moving statistics; yield the reason."""
    layers = unsynchronized(model)
    with putting() as put:
        for layer in layers:
            put(layer, "call", partial(_untrained, layer.call))
        names = few([repr(layer.name) for layer in layers])
        reason = (
            f"{names} normalize the examples of each replica separately "
            "(BatchNormalization without synchronized=True)"
        )
        yield [reason] if layers else []


def _untrained(call: Any, inputs: Any, training: Any = None, mask: Any = None) -> Any:
    return call(inputs, training=False, mask=mask)


@contextmanager
def metrics_of_one_device(model: Any) -> Iterator[None]:
    """Let metrics read their first copy, in place of the sum of all copies."""
    with putting() as put:
        for value in [stored(v) for metric in metrics_of(model) for v in metric.variables]:
            if hasattr(value, "_aggregation"):
                put(value, "_aggregation", tf.VariableAggregation.ONLY_FIRST_REPLICA)
        yield


@contextmanager
def equal_rows_drawn() -> Iterator[set[str]]:
    """Let functions of ``tf.random`` draw one row for all examples; yield the names of used ones.

    Replicas then have the random numbers of one device, in dropout, augmentation or noise.
    """
    drawn: set[str] = set()
    with putting() as put:
        for name in ("normal", "uniform", "truncated_normal"):
            stateless = getattr(tf.random, f"stateless_{name}")
            for own in (name, f"stateless_{name}"):
                put(tf.random, own, _one_row(getattr(tf.random, own), stateless, drawn))
        put(tf.nn, "dropout", _dropout(drawn))
        put(tf.nn.experimental, "stateless_dropout", _dropout(drawn))
        yield drawn


@contextmanager
def retrace_functions() -> Iterator[None]:
    """Trace copies of the user's ``tf.function`` objects, which would cache traces of the proof."""
    kind = type(tf.function(lambda: None))
    plain = kind.__call__

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return plain(self._clone(None), *args, **kwargs)

    with replaced(kind, __call__=call):
        yield


@contextmanager
def without_tensor_float_32() -> Iterator[None]:
    """Compute products of float32 without TensorFloat-32, which rounds factors to 10 bits."""
    plain = tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(False)
    try:
        yield
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(plain)


def _one_row(own: Any, stateless: Any, names: set[str]) -> Callable[..., Any]:
    signature = inspect.signature(own)

    def draw(*args: Any, **kwargs: Any) -> Any:
        arguments = signature.bind(*args, **kwargs).arguments
        settings = {name: arguments[name] for name in _OF_A_DRAW if name in arguments}
        names.add(own.__name__)
        shape = tf.convert_to_tensor(arguments["shape"], dtype_hint=tf.int32)
        one_row = tf.concat([tf.ones_like(shape[:1]), shape[1:]], axis=0)
        return tf.broadcast_to(stateless(one_row, seed=_SEED, **settings), shape)

    return draw


def _dropout(drawn: set[str]) -> Callable[..., Any]:
    plain = tf.nn.experimental.stateless_dropout

    def dropout(x: Any, rate: Any, *_: Any, noise_shape: Any = None, **__: Any) -> Any:
        drawn.add("dropout")
        shape = tf.convert_to_tensor(tf.shape(x) if noise_shape is None else noise_shape)
        one_row = tf.concat([tf.ones_like(shape[:1]), shape[1:]], axis=0)
        return plain(x, rate, seed=_SEED, noise_shape=one_row)

    return dropout
