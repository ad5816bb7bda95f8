"""Values turned round as LiteRT can do it in integers, while a model is traced for its file.

Guarantees: the same results; TensorFlow is as it was when the context is left. LiteRT's REVERSE
copies integers, and the converter gives what it copied to a range of its own: of a layer's values
turned round (``keras.ops.flip``, ``tf.image.flip_left_right``, Bidirectional) nothing would be
right. A slice that steps backwards keeps the range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numpy as np

from tfopt.one_at_a_time import ONE_AT_A_TIME

# A slice in LiteRT has no more axes.
_MOST_AXES = 5


@contextmanager
def turned_by_slices() -> Iterator[None]:
    """Inside it TensorFlow turns float values round by slices; in other threads too, equally."""
    import tensorflow as tf

    # The second is what tf.image takes.
    homes: list[tuple[Any, str]] = [
        (tf, "reverse"),
        (import_module("tensorflow.python.ops.array_ops"), "reverse"),
        (import_module("tensorflow.python.ops.array_ops"), "reverse_v2"),
    ]
    with ONE_AT_A_TIME:
        found = [(home, name, getattr(home, name)) for home, name in homes]
        for home, name, plain in found:
            setattr(home, name, _by_slices(plain))
        try:
            yield
        finally:
            for home, name, plain in found:
                setattr(home, name, plain)


def _by_slices(plain: Callable[..., Any]) -> Callable[..., Any]:
    def reverse(tensor: Any, axis: Any, name: str | None = None) -> Any:
        import tensorflow as tf

        values, axes = tf.convert_to_tensor(tensor), tf.get_static_value(axis)
        rank = values.shape.rank
        if axes is None or rank is None or rank > _MOST_AXES or not values.dtype.is_floating:
            return plain(tensor, axis, name)
        turned = {int(each) % rank for each in np.ravel(axes)}
        return values[tuple(slice(None, None, -1 if n in turned else 1) for n in range(rank))]

    return reverse
