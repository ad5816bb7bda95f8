"""Keep what a proof changes of a model, and have random numbers that replicas can share.

Importing this module imports TensorFlow and Keras.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from tfopt.distribute.step import metrics_of, optimizers_of, variables_of
from tfopt.hooks import putting, replaced
from tfopt.keras_internals import stored
from tfopt.resume.random_state import capture_host, restore_host
from tfopt.resume.variables import put_back, values_of
from tfopt.resume.variables import variables_of as all_variables_of

_SEED = (7, 7)
_OF_A_DRAW = ("mean", "stddev", "minval", "maxval", "dtype")


class SavedState:
    """Everything that steps change of a model; put back where the block is left."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._saved: dict[int, tuple[Any, list[Any]]] = {}
        self._undo = ExitStack()
        self._random_state = _random_state()

    def __enter__(self) -> SavedState:
        return self

    def __exit__(self, *_: Any) -> None:
        self.put_back()
        self._undo.close()

    def save(self) -> None:
        """Save what there is now; what an optimizer makes in its first step is saved there."""
        self._save([each.variable for each in all_variables_of(self._model)])
        for metric in metrics_of(self._model):  # also those that an own ``metrics`` leaves out
            self._save(metric.variables)
        for optimizer in optimizers_of(self._model).values():
            for each in (optimizer, getattr(optimizer, "inner_optimizer", None)):
                if each is not None and not each.built:
                    self._save_once_built(each)

    def before(self, variable: Any) -> Any:
        """Return what the first copy of a variable was; None where it was not saved."""
        _, values = self._saved.get(id(stored(variable)), (None, [None]))
        return values[0]

    def note_random_state(self) -> None:
        """Take the random state of now as the one to put back."""
        self._random_state = _random_state()

    def put_back(self) -> None:
        """Put everything back, copy by copy: to assign a metric's variable would exchange it."""
        for variable, values in self._saved.values():
            put_back(variable, values)
        _set_random_state(self._random_state)

    def draw_anew(self) -> None:
        """Set all seeds to others than a proof began with."""
        random.seed(20250)
        np.random.seed(20250)
        tf.random.set_seed(20250)
        for variable, values in self._saved.values():
            if variable.dtype.is_integer and variable.shape.rank == 1:  # a generator's state
                put_back(variable, [value + 1 for value in values])

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
                self._save(variables_of(optimizer))

        self._undo.enter_context(replaced(optimizer, build=build_and_save))


def _random_state() -> tuple[Any, ...]:
    there = context.context()
    drawn = getattr(there, "_rng", None)
    return capture_host(), there._seed, drawn, None if drawn is None else drawn.getstate()


def _set_random_state(state: tuple[Any, ...]) -> None:
    there = context.context()
    of_host, there._seed, drawn, of_drawn = state
    restore_host(of_host)
    there._rng = drawn
    if drawn is not None:
        drawn.setstate(of_drawn)


@contextmanager
def same_for_each_example() -> Iterator[set[str]]:
    """Let functions of ``tf.random`` draw one row for all examples; yield the names of those used.

    Replicas then have the random numbers of one device, in Dropout, augmentation, or noise.
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
def functions_traced_anew() -> Iterator[None]:
    """Let each ``tf.function`` of the user's own be traced for the proof alone.

    What it keeps is for all its callers: a trace of one device, and with random numbers of a proof.
    """
    kind = type(tf.function(lambda: None))
    plain = kind.__call__

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return plain(self._clone(None), *args, **kwargs)

    with replaced(kind, __call__=call):
        yield


def of_proof(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function compiled once; TensorFlow would warn of several proofs' as one retraced."""
    made = tf.function(function, autograph=False, reduce_retracing=True)
    compiled: list[Any] = []

    def call(iterator: Any) -> Any:
        if not compiled:
            compiled.append(made.get_concrete_function(iterator))
        return compiled[0](iterator)

    return call


@contextmanager
def exact_products() -> Iterator[None]:
    """Compute products of float32 in float32, where a GPU would round their factors to 10 bits."""
    plain = tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(False)
    try:
        yield
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(plain)


def _one_row(own: Any, stateless: Any, names: set[str]) -> Callable[..., Any]:
    signature = inspect.signature(own)

    def draw(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        how = {name: given[name] for name in _OF_A_DRAW if name in given}
        names.add(own.__name__)
        shape = tf.convert_to_tensor(given["shape"], dtype_hint=tf.int32)
        known = tf.get_static_value(shape, partial=True)
        one_row = tf.concat([tf.ones_like(shape[:1]), shape[1:]], axis=0)
        drawn = tf.broadcast_to(stateless(one_row, seed=_SEED, **how), shape)
        if known is not None:
            drawn.set_shape([None if each is None else int(each) for each in known])
        return drawn

    return draw


def _dropout(drawn: set[str]) -> Callable[..., Any]:
    plain = tf.nn.experimental.stateless_dropout

    def dropout(x: Any, rate: Any, *_: Any, noise_shape: Any = None, **__: Any) -> Any:
        drawn.add("dropout")
        shape = tf.convert_to_tensor(tf.shape(x) if noise_shape is None else noise_shape)
        one_row = tf.concat([tf.ones_like(shape[:1]), shape[1:]], axis=0)
        return plain(x, rate, seed=_SEED, noise_shape=one_row)

    return dropout
