"""Convolution and pooling of volumes as those of images, which LiteRT has in integers.

Guarantees: the same results in float, but for rounding. The slices that a kernel covers are laid
beside each other as channels, so that each slice of the result is an image's convolution; all are
computed in one, as a batch. A window is pooled slice by slice, and then what is left of its slices.
LiteRT pools no volumes at all. TensorFlow is imported when it is first needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from tfopt.compress.model_graph import computes_as_keras, kinds
from tfopt.job.rebuild import ONE_AT_A_TIME

# Patches of images as LiteRT can take them, while a model is traced for its file.
#
# Guarantees: the same results; TensorFlow is as it was when the context is left. For
# ``tf.image.extract_patches``, with which many a Vision Transformer begins, LiteRT has no
# operator: patches beside each other are blocks moved into the depth, and others a convolution
# that picks each value once, as ``keras.ops.image.extract_patches`` has it. What is known only
# when the model runs is left as it is.


@contextmanager
def patches_by_blocks() -> Iterator[None]:
    """Inside it TensorFlow takes patches of float images so; in other threads too, equally."""
    import tensorflow as tf

    with ONE_AT_A_TIME:
        plain = tf.image.extract_patches
        tf.image.extract_patches = _by_blocks(plain)
        try:
            yield
        finally:
            tf.image.extract_patches = plain


def _by_blocks(plain: Callable[..., Any]) -> Callable[..., Any]:
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
        if _beside_each_other(size, stride, rate, images.shape[1:3]):
            return tf.nn.space_to_depth(images, size[0])
        values = size[0] * size[1] * images.shape[-1]
        each_once = tf.reshape(tf.eye(values, dtype=images.dtype), [*size, -1, values])
        return tf.nn.conv2d(images, each_once, stride, padding, dilations=rate)

    return extract_patches


def _beside_each_other(
    size: tuple[int, ...], stride: tuple[int, ...], rate: tuple[int, ...], image: Any
) -> bool:
    """Whether squares of more than a pixel fill the image, each pixel in one."""
    block = size[0]
    return (
        block > 1
        and size == stride == (block, block)
        and rate == (1, 1)
        and all(length is not None and length % block == 0 for length in image)
    )


# Layers that scale and shift each channel, as one operator of a file in integers.
#
# Guarantees: the same results in float, but for rounding. A depthwise convolution of one pixel
# adds up in 32 bits and is rounded once, where a product and a sum are rounded twice; its
# weights, one a channel, are exact. TensorFlow is imported when it is first needed.

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


# A separable convolution in its two parts, so that something can be done between them.
#
# Guarantees: what Keras computes, but for what is done between. LiteRT has two operators for it,
# and rounds what the first gives.


def has_two_parts(layer: Any) -> bool:
    """Whether :func:`in_two_parts` gives what the layer does."""
    return "BaseSeparableConv" in kinds(layer) and computes_as_keras(layer)


def in_two_parts(layer: Any, between: Callable[[Any], Any], inputs: Any) -> Any:
    """The layer's call with ``between`` on what its depthwise convolution gives."""
    from keras import ops

    shared = {"data_format": layer.data_format}
    deep = ops.depthwise_conv(
        inputs,
        layer.depthwise_kernel,
        strides=layer.strides,
        padding=layer.padding,
        dilation_rate=layer.dilation_rate,
        **shared,
    )
    result = ops.conv(between(deep), layer.pointwise_kernel, strides=1, padding="valid", **shared)
    if layer.use_bias:
        last = layer.data_format == "channels_last"
        ones = (1,) * layer.rank
        shape = (1, *ones, layer.filters) if last else (1, layer.filters, *ones)
        result = ops.add(result, ops.reshape(layer.bias, shape))
    return result if layer.activation is None else layer.activation(result)


def is_volume_convolution(layer: Any) -> bool:
    """Whether :func:`convolved` gives what the layer does."""
    return (
        "Conv3D" in kinds(layer)
        and layer.data_format == "channels_last"
        and layer.groups == 1
        and layer.padding in ("valid", "same")
    )


def convolved(layer: Any, inputs: Any) -> Any:
    """What the layer gives, for inputs of known shape."""
    import tensorflow as tf

    stride, *strides = layer.strides
    dilation, *dilations = layer.dilation_rate
    slices = _slices(inputs, layer.kernel_size[0], stride, dilation, layer.padding)
    depth, rows, columns, channels = slices.shape[1:]
    images = tf.reshape(slices, [-1, rows, columns, channels])
    images = tf.nn.conv2d(
        images, _kernel_of_images(layer), strides, layer.padding.upper(), dilations=dilations
    )
    if layer.use_bias:
        images = tf.nn.bias_add(images, layer.bias)
    if layer.activation is not None:
        images = layer.activation(images)
    return tf.reshape(images, [-1, depth, *images.shape[1:]])


def pooled(layer: Any, inputs: Any) -> Any:
    """The largest or the mean value of each window, for inputs of known shape."""
    import tensorflow as tf

    pool = tf.nn.max_pool2d if "MaxPooling3D" in kinds(layer) else tf.nn.avg_pool2d
    padding = layer.padding.upper()
    (deep, *window), (stride, *strides) = layer.pool_size, layer.strides
    depth, rows, columns, channels = inputs.shape[1:]
    images = tf.reshape(inputs, [-1, rows, columns, channels])
    images = pool(images, window, strides, padding)
    rows, columns = images.shape[1:3]
    slices = tf.reshape(images, [-1, depth, rows * columns, channels])
    # A mean of means is the mean: at an edge too all rows of a window are equally many.
    slices = pool(slices, [deep, 1], [stride, 1], padding)
    return tf.reshape(slices, [-1, slices.shape[1], rows, columns, channels])


def _kernel_of_images(layer: Any) -> Any:
    """The kernel with its slices beside each other as channels."""
    import tensorflow as tf

    turned = tf.transpose(tf.convert_to_tensor(layer.kernel), [1, 2, 0, 3, 4])
    rows, columns, depth, channels, filters = turned.shape
    return tf.reshape(turned, [rows, columns, depth * channels, filters])


def _slices(x: Any, size: int, stride: int, dilation: int, padding: str) -> Any:
    """For each slice of the result, the slices that it is computed from, as channels."""
    import tensorflow as tf

    reach = (size - 1) * dilation + 1
    if padding == "same":
        results = -(-x.shape[1] // stride)
        missing = max((results - 1) * stride + reach - x.shape[1], 0)
        x = tf.pad(x, [[0, 0], [missing // 2, missing - missing // 2], [0, 0], [0, 0], [0, 0]])
    results = (x.shape[1] - reach) // stride + 1
    starts = [dilation * place for place in range(size)]
    parts = [x[:, start : start + (results - 1) * stride + 1 : stride] for start in starts]
    return tf.concat(parts, axis=-1)
