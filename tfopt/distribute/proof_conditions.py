"""Let one device and the replicas compute alike during a proof.

Importing this module imports TensorFlow and Keras.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import tensorflow as tf

from tfopt.distribute.model_parts import metrics_of, unsynchronized
from tfopt.hooks import putting, replaced
from tfopt.keras_internals import stored
from tfopt.report.format import few

_SEED = (7, 7)
_OF_A_DRAW = ("mean", "stddev", "minval", "maxval", "dtype")


@contextmanager
def moving_statistics(model: Any) -> Iterator[list[str]]:
    """Let unsynchronized normalization layers use their moving statistics; yield the reason."""
    layers = unsynchronized(model)
    with ExitStack() as undo:
        for layer in layers:
            undo.enter_context(replaced(layer, call=partial(_untrained, layer.call)))
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
    variables = [variable for metric in metrics_of(model) for variable in metric.variables]
    first = tf.VariableAggregation.ONLY_FIRST_REPLICA
    with ExitStack() as undo:
        for value in map(stored, variables):
            if hasattr(value, "_aggregation"):
                undo.enter_context(replaced(value, _aggregation=first))
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


def compile_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function compiled once, without TensorFlow's warning about retracing."""
    traced = tf.function(function, autograph=False, reduce_retracing=True)
    compiled: list[Any] = []

    def call(iterator: Any) -> Any:
        if not compiled:
            compiled.append(traced.get_concrete_function(iterator))
        return compiled[0](iterator)

    return call


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
        static = tf.get_static_value(shape, partial=True)
        one_row = tf.concat([tf.ones_like(shape[:1]), shape[1:]], axis=0)
        drawn = tf.broadcast_to(stateless(one_row, seed=_SEED, **settings), shape)
        if static is not None:
            drawn.set_shape([None if size is None else int(size) for size in static])
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
