"""Values turned round or rolled on as LiteRT can do it, while a model is traced for its file.

Guarantees: the same results; TensorFlow is as it was when the context is left. LiteRT's REVERSE
copies integers, and the converter gives what it copied to a range of its own: of a layer's values
turned round (``keras.ops.flip``, ``tf.image.flip_left_right``, Bidirectional) nothing would be
right. A slice that steps backwards keeps the range. For Roll, which shifts the windows of a Swin
Transformer, LiteRT has nothing at all: two slices that change places are the same. What is known
only when the model runs (the axes, the shifts, the length of an axis) is left as it is.
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
    """Inside it TensorFlow turns float values round, and rolls all, by slices; in other threads
    too, equally."""
    import tensorflow as tf

    # The second is what tf.image takes.
    homes: list[tuple[Any, str, Callable[..., Any]]] = [
        (tf, "reverse", _by_slices),
        (import_module("tensorflow.python.ops.array_ops"), "reverse", _by_slices),
        (import_module("tensorflow.python.ops.array_ops"), "reverse_v2", _by_slices),
        (tf, "roll", _by_two_slices),
        (import_module("tensorflow.python.ops.manip_ops"), "roll", _by_two_slices),
    ]
    with ONE_AT_A_TIME:
        found = [(home, name, getattr(home, name)) for home, name, _ in homes]
        for home, name, by_slices in homes:
            setattr(home, name, by_slices(getattr(home, name)))
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


def _by_two_slices(plain: Callable[..., Any]) -> Callable[..., Any]:
    def roll(input: Any, shift: Any, axis: Any, name: str | None = None) -> Any:
        import tensorflow as tf

        values = tf.convert_to_tensor(input)
        shifts, axes = tf.get_static_value(shift), tf.get_static_value(axis)
        rank = values.shape.rank
        if shifts is None or axes is None or rank is None or rank > _MOST_AXES:
            return plain(input, shift, axis, name)
        pairs = zip(np.ravel(shifts), np.ravel(axes), strict=True)
        moves = [(int(by), int(on) % rank) for by, on in pairs]
        if any(values.shape[on] is None for _, on in moves):
            return plain(input, shift, axis, name)
        for by, on in moves:
            values = _rolled(values, by, on)
        return values

    return roll


def _rolled(values: Any, by: int, on: int) -> Any:
    import tensorflow as tf

    length = values.shape[on]
    if not length or not by % length:
        return values
    before: tuple[slice, ...] = (slice(None),) * on
    cut = length - by % length
    return tf.concat([values[(*before, slice(cut, None))], values[(*before, slice(cut))]], on)
