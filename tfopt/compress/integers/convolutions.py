"""Separable convolutions in two parts, as an int8 file computes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfopt.compress.model_graph import computes_as_keras, kinds


def has_two_parts(layer: Any) -> bool:
    """Return whether :func:`in_two_parts` can compute a layer."""
    return "BaseSeparableConv" in kinds(layer) and computes_as_keras(layer)


def in_two_parts(layer: Any, between: Callable[[Any], Any], inputs: Any) -> Any:
    """Compute a separable convolution with ``between`` applied to its depthwise result."""
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
