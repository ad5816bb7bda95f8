"""TensorFlow's functions by operators that LiteRT has, while a model is traced for its file.

Keras's layers have forms (:mod:`tfopt.compress.integers.forms`); a ``call`` of a user's own takes
TensorFlow's functions. The results are the same but for rounding. What is known only when the model
runs, such as the axes of a reversal, is left as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numpy as np

from tfopt.compress.integers.attention import maximum_of_near_scores, softmax_of_near_scores
from tfopt.compress.integers.tracing import Form, Replacement, replaced, restored

# A slice in LiteRT has no more axes.
_MOST_AXES = 5


@contextmanager
def functions_of_litert() -> Iterator[None]:
    """Replace what LiteRT computes wrongly, or not at all, in any kind of file."""
    import tensorflow as tf

    arrays = import_module("tensorflow.python.ops.array_ops")
    manip = import_module("tensorflow.python.ops.manip_ops")
    backend = "keras.src.backend.tensorflow"
    numpy = import_module(f"{backend}.numpy")
    replacements: list[Replacement] = [
        (tf, "reverse", _reverse),
        # What tf.image takes.
        (arrays, "reverse", _reverse),
        (arrays, "reverse_v2", _reverse),
        (tf, "roll", _roll),
        (manip, "roll", _roll),
        (numpy, "argmax", lambda plain: _place_of("argmax")),
        (numpy, "argmin", lambda plain: _place_of("argmin")),
    ]
    patched = [
        (tf, "einsum"),
        (tf.linalg, "einsum"),
        (tf.image, "extract_patches"),
    ]
    # Assigned by name, which the guard on patches of libraries counts.
    with restored(patched), replaced(replacements):
        tf.einsum = _einsum(tf.einsum)
        tf.linalg.einsum = _einsum(tf.linalg.einsum)
        tf.image.extract_patches = _extract_patches(tf.image.extract_patches)
        yield


@contextmanager
def functions_of_integers() -> Iterator[None]:
    """Replace what LiteRT computes in floats only, for a file of integers."""
    import tensorflow as tf

    replacements: list[Replacement] = [
        (tf, "zeros_like", _zeros_like),
        (tf, "one_hot", _one_hot),
    ]
    with restored([(tf.nn, "softmax"), (tf, "reduce_max")]), replaced(replacements):
        tf.nn.softmax = softmax_of_near_scores(tf.nn.softmax)
        tf.reduce_max = maximum_of_near_scores(tf.reduce_max)
        yield


def _reverse(plain: Form) -> Form:
    """Turn values round by a slice that steps backwards, which keeps their range.

    LiteRT's REVERSE copies integers, and the converter gives what it copied a range of its own.
    """

    def reverse(tensor: Any, axis: Any, name: str | None = None) -> Any:
        import tensorflow as tf

        values, axes = tf.convert_to_tensor(tensor), tf.get_static_value(axis)
        rank = values.shape.rank
        if axes is None or rank is None or rank > _MOST_AXES or not values.dtype.is_floating:
            return plain(tensor, axis, name)
        turned = {int(each) % rank for each in np.ravel(axes)}
        return values[tuple(slice(None, None, -1 if n in turned else 1) for n in range(rank))]

    return reverse


def _roll(plain: Form) -> Form:
    """Roll values, as a Swin Transformer does, by two slices that change places."""

    def roll(input: Any, shift: Any, axis: Any, name: str | None = None) -> Any:
        import tensorflow as tf

        values = tf.convert_to_tensor(input)
        shifts, axes = tf.get_static_value(shift), tf.get_static_value(axis)
        rank = values.shape.rank
        if shifts is None or axes is None or rank is None or rank > _MOST_AXES:
            return plain(input, shift, axis, name)
        moves = [
            (int(by), int(on) % rank)
            for by, on in zip(np.ravel(shifts), np.ravel(axes), strict=True)
        ]
        if any(values.shape[on] is None for _, on in moves):
            return plain(input, shift, axis, name)
        for by, on in moves:
            length = values.shape[on]
            if length and by % length:
                cut, before = length - by % length, (slice(None),) * on
                parts = [values[(*before, slice(cut, None))], values[(*before, slice(cut))]]
                values = tf.concat(parts, on)
        return values

    return roll


def _einsum(plain: Form) -> Form:
    """Take the operand with the free batch first: the other way round its shape overflows."""

    def einsum(equation: str, *inputs: Any, **named: Any) -> Any:
        import tensorflow as tf

        if len(inputs) != 2 or "->" not in equation:
            return plain(equation, *inputs, **named)
        one, other = inputs
        is_known = None not in tuple(getattr(one, "shape", (None,)))
        is_free = isinstance(other, tf.Tensor) and other.shape.rank and other.shape[0] is None
        if not (is_known and is_free):
            return plain(equation, one, other, **named)
        operands, result = equation.split("->")
        first, second = operands.split(",")
        return plain(f"{second},{first}->{result}", other, one, **named)

    return einsum


def _extract_patches(plain: Form) -> Form:
    """Take patches of float images, with which many a Vision Transformer begins.

    Patches beside each other are blocks moved into the depth, and others a convolution that picks
    each value once, as ``keras.ops.image.extract_patches`` has it.
    """

    def extract_patches(
        images: Any,
        sizes: Sequence[int],
        strides: Sequence[int],
        rates: Sequence[int],
        padding: str,
        name: str | None = None,
    ) -> Any:
        import tensorflow as tf

        images = tf.convert_to_tensor(images)
        known = images.shape.rank == 4 and images.shape[-1] is not None
        if not (known and images.dtype.is_floating):
            return plain(images, sizes, strides, rates, padding, name)
        size, stride, rate = (tuple(map(int, each[1:3])) for each in (sizes, strides, rates))
        block = size[0]
        beside = size == stride == (block, block) and rate == (1, 1) and block > 1
        if beside and all(length and length % block == 0 for length in images.shape[1:3]):
            return tf.nn.space_to_depth(images, block)
        values = size[0] * size[1] * images.shape[-1]
        each_once = tf.reshape(tf.eye(values, dtype=images.dtype), [*size, -1, values])
        return tf.nn.conv2d(images, each_once, stride, padding, dilations=rate)

    return extract_patches


def _place_of(name: str) -> Form:
    """Return ``argmax`` or ``argmin`` without Keras's look at the bits, which tells -0 from 0."""

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


def _zeros_like(plain: Form) -> Form:
    def zeros_like(input: Any, dtype: Any = None, *rest: Any, **named: Any) -> Any:
        import tensorflow as tf

        known = isinstance(input, tf.Tensor) and input.shape.rank is not None
        if not known or tf.as_dtype(dtype or input.dtype) != tf.float32:
            return plain(input, dtype, *rest, **named)
        return tf.broadcast_to(tf.zeros([1] * input.shape.rank), tf.shape(input))

    return zeros_like


def _one_hot(plain: Form) -> Form:
    """Compare with each class: of ONE_HOT the converter makes one value of zero and one."""

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
        wanted = tf.as_dtype(dtype or tf.float32)
        if not (known and wanted.is_floating and on_value is None and off_value is None):
            return plain(indices, depth, on_value, off_value, axis, dtype, name)
        axis = -1 if axis is None else axis
        places = tf.expand_dims(tf.cast(indices, tf.int32), axis)
        along = [1] * places.shape.rank
        along[axis] = int(classes)
        equal = tf.equal(places, tf.reshape(tf.range(int(classes)), along))
        return tf.where(equal, tf.ones([], wanted), tf.zeros([], wanted))

    return one_hot
