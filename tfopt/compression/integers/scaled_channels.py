"""Layers that scale and shift each channel, as one operator of a file in integers.

Guarantees: the same results in float, but for rounding. A depthwise convolution of one pixel adds
up in 32 bits and is rounded once, where a product and a sum are rounded twice; its weights, one a
channel, are exact. TensorFlow is imported when it is first needed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tfopt.compression.graph import kinds

Array = np.ndarray[Any, Any]
# So small beside the largest factor that no step of the result is moved by it; with less, the
# shift would not fit into the 32 bits that a channel's results add up in.
_LEAST = 1e-5


def is_scaling(layer: Any) -> bool:
    """Whether all that a layer does when served is to scale and shift each channel."""
    return _factors(layer) is not None


def scaled_channels(layer: Any, inputs: Any) -> Any:
    """What the layer gives."""
    import tensorflow as tf

    found = _factors(layer)
    assert found is not None
    x = tf.cast(inputs, layer.compute_dtype)
    scale, shift = (_along_channels(each, x.shape[-1]) for each in found)
    return _scale_and_shift(x, scale, shift)


def _scale_and_shift(x: Any, scale: Array, shift: Array) -> Any:
    import tensorflow as tf

    if len(x.shape) not in (2, 3, 4, 5) or (len(x.shape) == 5 and None in x.shape[1:]):
        return x * scale + shift
    least = _LEAST * max(float(np.abs(scale).max()), _LEAST)
    scale = np.where(np.abs(scale) < least, least, scale)
    image = _as_images(x)
    kernel = tf.constant(scale[None, None, :, None], x.dtype)
    image = tf.nn.depthwise_conv2d(image, kernel, [1, 1, 1, 1], "VALID")
    image = tf.nn.bias_add(image, tf.constant(shift, x.dtype))
    if len(x.shape) < 4:
        return tf.squeeze(image, list(range(1, 5 - len(x.shape))))
    return image if len(x.shape) == 4 else tf.reshape(image, [-1, *x.shape[1:]])


def _as_images(x: Any) -> Any:
    """Rows and columns in place of fewer axes, or of more."""
    import tensorflow as tf

    for _ in range(4 - len(x.shape)):
        x = tf.expand_dims(x, 1)
    if len(x.shape) == 4:
        return x
    _, depth, rows, columns, channels = x.shape
    return tf.reshape(x, [-1, depth * rows, columns, channels])


def _factors(layer: Any) -> tuple[Array, Array] | None:
    """Factor and shift, with one number or one for each channel of the last axis."""
    names = kinds(layer)
    found = next((read(layer) for name, read in _READ.items() if name in names), None)
    if found is None or any(array.size != array.shape[-1] for array in found):
        return None
    return found


def _rescaling(layer: Any) -> tuple[Array, Array]:
    return _numbers(layer.scale), _numbers(layer.offset)


def _normalization(layer: Any) -> tuple[Array, Array] | None:
    if layer.invert or layer.mean is None:
        return None
    scale = 1 / np.maximum(np.sqrt(_numbers(layer.variance)), 1e-7)
    return scale, -_numbers(layer.mean) * scale


def _batch_normalization(layer: Any) -> tuple[Array, Array] | None:
    if layer.renorm or layer.axis not in (-1, layer.input_spec.ndim - 1):
        return None
    scale = 1 / np.sqrt(_numbers(layer.moving_variance) + layer.epsilon)
    scale = scale * (_numbers(layer.gamma) if layer.scale else 1)
    shift = _numbers(layer.beta) if layer.center else 0
    return scale, shift - _numbers(layer.moving_mean) * scale


_READ = {
    "Rescaling": _rescaling,
    "Normalization": _normalization,
    "BatchNormalization": _batch_normalization,
}


def _numbers(values: Any) -> Array:
    """As an array, also from inside a graph that is being traced."""
    import keras
    import tensorflow as tf

    with tf.init_scope():
        found = keras.ops.convert_to_numpy(values)
    return np.atleast_1d(np.asarray(found, "float32"))


def _along_channels(values: Array, channels: int) -> Array:
    return np.broadcast_to(values.reshape(-1), [channels]).astype("float32")
