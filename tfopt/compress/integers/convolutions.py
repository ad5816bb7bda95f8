"""Layers as convolutions and poolings of images, which LiteRT has in integers.

In float the results are those of Keras but for rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfopt.compress.model_graph import computes_as_keras, kinds


def has_two_parts(layer: Any) -> bool:
    """Return whether :func:`in_two_parts` computes the layer."""
    return "BaseSeparableConv" in kinds(layer) and computes_as_keras(layer)


def in_two_parts(layer: Any, between: Callable[[Any], Any], inputs: Any) -> Any:
    """Compute a separable convolution with ``between`` on what its depthwise part gives."""
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
    """Return whether :func:`convolved` computes the layer."""
    return (
        "Conv3D" in kinds(layer)
        and layer.data_format == "channels_last"
        and layer.groups == 1
        and layer.padding in ("valid", "same")
    )


def convolved(layer: Any, inputs: Any) -> Any:
    """Convolve a volume of known shape as images, all slices in one batch.

    The slices that a kernel covers are laid beside each other as channels, so that each slice of
    the result is an image's convolution.
    """
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
    """Pool the windows of a volume of known shape: slice by slice, then what is left of these."""
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
    """Return the kernel with its slices beside each other as channels."""
    import tensorflow as tf

    turned = tf.transpose(tf.convert_to_tensor(layer.kernel), [1, 2, 0, 3, 4])
    rows, columns, depth, channels, filters = turned.shape
    return tf.reshape(turned, [rows, columns, depth * channels, filters])


def _slices(x: Any, size: int, stride: int, dilation: int, padding: str) -> Any:
    """Lay the slices that each slice of the result is computed from beside it, as channels."""
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
