"""Truth values as numbers in integers, while a model is traced for its file.

Guarantees: the same numbers; TensorFlow is as it was when the context is left. Keras multiplies by
a mask that it has cast to float (an average over the words that there are, say), and for that cast
LiteRT has no operator in integers: a choice between one and zero is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tfopt.one_at_a_time import ONE_AT_A_TIME


@contextmanager
def truths_by_choice() -> Iterator[None]:
    """Inside it ``tf.cast`` makes floats of truth values by a choice; in other threads too."""
    import tensorflow as tf

    with ONE_AT_A_TIME:
        plain = tf.cast
        tf.cast = _by_choice(plain)
        try:
            yield
        finally:
            tf.cast = plain


def _by_choice(plain: Callable[..., Any]) -> Callable[..., Any]:
    def cast(x: Any, dtype: Any, name: str | None = None) -> Any:
        import tensorflow as tf

        wanted = tf.as_dtype(dtype)
        truths = tf.is_tensor(x) and x.dtype == tf.bool and isinstance(x, tf.Tensor)
        if not (truths and wanted.is_floating):
            return plain(x, dtype, name)
        return tf.where(x, tf.ones([], wanted), tf.zeros([], wanted))

    return cast
