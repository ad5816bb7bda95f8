"""``keras.ops.argmax``, ``argmin`` and ``one_hot`` as LiteRT computes them in integers.

Guarantees: the same results; Keras is as it was when the context is left, in which a model is
traced for its file. Keras looks at the bits of each value first, to tell zero from minus zero,
which LiteRT has no operator for and a file's integers no difference of. And of LiteRT's own ONE_HOT
the converter makes one value of zero and one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from tfopt.one_at_a_time import ONE_AT_A_TIME


@contextmanager
def choosing_by_value() -> Iterator[None]:
    """Inside it Keras finds places, and makes ones at places, by plain comparisons."""
    numpy, nn = (import_module(f"keras.src.backend.tensorflow.{name}") for name in ("numpy", "nn"))
    forms = {(numpy, name): _place_of(name) for name in ("argmax", "argmin")}
    forms[nn, "one_hot"] = _one_hot(nn.one_hot)
    with ONE_AT_A_TIME:
        found = [(home, name, getattr(home, name)) for home, name in forms]
        for (home, name), form in forms.items():
            setattr(home, name, form)
        try:
            yield
        finally:
            for home, name, plain in found:
                setattr(home, name, plain)


def _place_of(name: str) -> Callable[..., Any]:
    def place(x: Any, axis: int | None = None, keepdims: bool = False) -> Any:
        import tensorflow as tf

        x = tf.convert_to_tensor(x)
        values = tf.reshape(x, [-1]) if axis is None else x
        found = getattr(tf, name)(values, 0 if axis is None else axis, tf.int32)
        if not keepdims:
            return found
        if axis is None:
            return tf.reshape(found, [1] * x.shape.rank)
        return tf.expand_dims(found, axis)

    return place


def _one_hot(plain: Callable[..., Any]) -> Callable[..., Any]:
    def one_hot(
        x: Any, num_classes: int, axis: int = -1, dtype: Any = None, sparse: bool = False
    ) -> Any:
        import tensorflow as tf

        if sparse:
            return plain(x, num_classes, axis, dtype, sparse)
        places = tf.expand_dims(tf.cast(x, tf.int32), axis)
        along = [1] * places.shape.rank
        along[axis] = num_classes
        classes = tf.reshape(tf.range(num_classes), along)
        return tf.cast(tf.where(tf.equal(places, classes), 1.0, 0.0), dtype or "float32")

    return one_hot
