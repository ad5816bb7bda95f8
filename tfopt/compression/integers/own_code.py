"""TensorFlow's functions by operators that LiteRT has in integers, in code of a model's own.

Guarantees: the same results but for rounding; TensorFlow is as it was when the context is left, in
which a model is traced for its file. A layer or an operation of Keras has its form
(:mod:`tfopt.compression.integers.forms`); a ``call`` of one's own takes TensorFlow's functions,
and for squares, negation, whole powers, ELU and zeros in the shape of others LiteRT has no operator
in integers, and of ONE_HOT the converter makes one value of zero and one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tfopt.compression.integers.activations import activation_form
from tfopt.one_at_a_time import ONE_AT_A_TIME

_as_written = threading.local()
# Of a higher power 256 values leave too little.
_HIGHEST_POWER = 4
Function = Callable[..., Any]


@contextmanager
def own_code_in_integers() -> Iterator[None]:
    """Inside it TensorFlow computes float values so; in other threads too, equally."""
    import tensorflow as tf

    forms: dict[str, Callable[[Function], Function]] = {
        "square": _squared,
        "negative": _negative,
        "pow": _power,
        "zeros_like": _zeros_like,
        "one_hot": _one_hot,
        "__neg__": _negative,
        "__pow__": _power,
        "elu": _elu,
        "gelu": _gelu,
    }
    homes: list[tuple[Any, str]] = [
        *((tf, name) for name in ("square", "negative", "pow", "zeros_like", "one_hot")),
        *((tf.math, name) for name in ("square", "negative", "pow")),
        *((tf.nn, name) for name in ("elu", "gelu")),
        *((tf.Tensor, name) for name in ("__neg__", "__pow__")),
    ]
    with ONE_AT_A_TIME:
        found = [(home, name, getattr(home, name)) for home, name in homes]
        for home, name, plain in found:
            setattr(home, name, forms[name](plain))
        try:
            yield
        finally:
            for home, name, plain in found:
                setattr(home, name, plain)


def _is_traced(values: Any) -> bool:
    """Whether these are float values of the graph that is traced."""
    import tensorflow as tf

    return (
        not getattr(_as_written, "on", False)
        and isinstance(values, tf.Tensor)
        and not hasattr(values, "numpy")
        and values.dtype == tf.float32
        and values.shape.rank is not None
    )


def _squared(plain: Function) -> Function:
    def square(x: Any, *rest: Any, **named: Any) -> Any:
        return x * x if _is_traced(x) else plain(x, *rest, **named)

    return square


def _negative(plain: Function) -> Function:
    def negative(x: Any, *rest: Any, **named: Any) -> Any:
        return x * -1.0 if _is_traced(x) else plain(x, *rest, **named)

    return negative


def _power(plain: Function) -> Function:
    def power(x: Any, y: Any, *rest: Any, **named: Any) -> Any:
        import tensorflow as tf

        times = tf.get_static_value(y) if tf.is_tensor(y) else y
        whole = isinstance(times, int | float) or getattr(times, "shape", None) == ()
        if not (_is_traced(x) and whole and times in range(2, _HIGHEST_POWER + 1)):
            return plain(x, y, *rest, **named)
        squares = x * x
        return {2: squares, 3: squares * x, 4: squares * squares}[int(times)]

    return power


def _zeros_like(plain: Function) -> Function:
    def zeros_like(input: Any, dtype: Any = None, *rest: Any, **named: Any) -> Any:
        import tensorflow as tf

        if not _is_traced(input) or (dtype is not None and tf.as_dtype(dtype) != tf.float32):
            return plain(input, dtype, *rest, **named)
        return tf.broadcast_to(tf.zeros([1] * input.shape.rank), tf.shape(input))

    return zeros_like


def _one_hot(plain: Function) -> Function:
    def one_hot(
        indices: Any,
        depth: Any,
        on_value: Any = None,
        off_value: Any = None,
        axis: Any = None,
        dtype: Any = None,
        name: str | None = None,
    ) -> Any:
        import tensorflow as tf

        classes = tf.get_static_value(depth) if tf.is_tensor(depth) else depth
        known = classes is not None and tf.is_tensor(indices) and indices.shape.rank is not None
        plainly = on_value is None and off_value is None and axis in (None, -1)
        if not (known and plainly and tf.as_dtype(dtype or tf.float32) == tf.float32):
            return plain(indices, depth, on_value, off_value, axis, dtype, name)
        places = tf.expand_dims(tf.cast(indices, tf.int32), -1)
        along = [1] * (places.shape.rank - 1) + [int(classes)]
        equal = tf.equal(places, tf.reshape(tf.range(int(classes)), along))
        return tf.where(equal, tf.ones([]), tf.zeros([]))

    return one_hot


def _elu(plain: Function) -> Function:
    def elu(features: Any, *rest: Any, **named: Any) -> Any:
        import keras

        form = activation_form(keras.activations.elu)
        return form(features) if form and _is_traced(features) else plain(features, *rest, **named)

    return elu


def _gelu(plain: Function) -> Function:
    """As it is: the converter knows it, negation and all, and makes one operator of it."""

    def gelu(*args: Any, **named: Any) -> Any:
        _as_written.on = True
        try:
            return plain(*args, **named)
        finally:
            _as_written.on = False

    return gelu
