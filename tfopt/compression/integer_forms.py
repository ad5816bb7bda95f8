"""Layers computed by operators that LiteRT has in integers, where Keras takes others.

Guarantees: the same results in float, but for rounding. Keras normalizes by ``x * inv - mean *
inv``, whose negation and squares have no integer kernel, and whose two terms are much larger than
their difference; here the mean is taken off first. TensorFlow is imported when it is first needed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfopt.compression.aware_graph import kinds
from tfopt.compression.integer_activations import activation_layer_form
from tfopt.compression.scaled_channels import is_scaling, scaled_channels
from tfopt.compression.static_shapes import where_shapes_are_known
from tfopt.compression.volumes import convolved, is_volume_convolution

Form = Callable[..., Any]


def integer_form(layer: Any, *, alone: bool) -> Form | None:
    """The layer's ``call`` when it is served in integers; None where its own does.

    Args:
        layer: A layer or an operation.
        alone: Whether no operator before it takes it in.
    """
    if alone and is_scaling(layer):
        return lambda inputs, *args, **kwargs: scaled_channels(layer, inputs)
    if is_volume_convolution(layer):
        return where_shapes_are_known(layer, convolved)
    names = kinds(layer)
    for name, form in _FORMS.items():
        if name in names and not getattr(layer, "rms_scaling", False):
            return lambda inputs, *args, **kwargs: form(layer, inputs)
    own = activation_layer_form(layer)
    return None if own is None else lambda inputs, *args, **kwargs: own(inputs)


def _layer_normalization(layer: Any, inputs: Any) -> Any:
    axes = _axes(layer, inputs)
    if all(inputs.shape[axis] == 1 for axis in axes):
        # A value less itself: a range without width, which ends the conversion.
        return _always(_along(layer.beta, inputs, axes), inputs)
    normalized = _standardized(inputs, axes, layer.epsilon)
    return _scaled(normalized, _along(layer.gamma, inputs, axes), _along(layer.beta, inputs, axes))


def _always(value: Any, inputs: Any) -> Any:
    """The same value, or zero, in the shape of the inputs."""
    import tensorflow as tf

    value = tf.zeros([1] * len(inputs.shape), inputs.dtype) if value is None else value
    return tf.broadcast_to(value, tf.shape(inputs))


def _rms_normalization(layer: Any, inputs: Any) -> Any:
    axes = _axes(layer, inputs)
    return _scaled(_divided(inputs, axes, layer.epsilon), _along(layer.scale, inputs, axes), None)


def _unit_normalization(layer: Any, inputs: Any) -> Any:
    import tensorflow as tf

    total = tf.reduce_sum(inputs * inputs, _axes(layer, inputs), keepdims=True)
    return inputs * tf.math.rsqrt(tf.maximum(total, 1e-12))


def _group_normalization(layer: Any, inputs: Any) -> Any:
    import tensorflow as tf

    grouped = layer._reshape_into_groups(inputs)
    own = len(grouped.shape) - 2 if layer.axis == -1 else layer.axis
    axes = [axis for axis in range(1, len(grouped.shape)) if axis != own]
    shape = layer._create_broadcast_shape(inputs.shape)
    gamma = tf.reshape(layer.gamma, shape) if layer.scale else None
    beta = tf.reshape(layer.beta, shape) if layer.center else None
    normalized = _scaled(_standardized(grouped, axes, layer.epsilon), gamma, beta)
    return tf.reshape(normalized, tf.shape(inputs))


_FORMS: dict[str, Form] = {
    "LayerNormalization": _layer_normalization,
    "RMSNormalization": _rms_normalization,
    "UnitNormalization": _unit_normalization,
    "GroupNormalization": _group_normalization,
}


def _standardized(values: Any, axes: list[int], epsilon: float) -> Any:
    import tensorflow as tf

    return _divided(values - tf.reduce_mean(values, axes, keepdims=True), axes, epsilon)


def _divided(values: Any, axes: list[int], epsilon: float) -> Any:
    """The values by the root of their mean square, as a product: ``square`` has no integers."""
    import tensorflow as tf

    return values * tf.math.rsqrt(tf.reduce_mean(values * values, axes, keepdims=True) + epsilon)


def _scaled(values: Any, gamma: Any, beta: Any) -> Any:
    scaled = values if gamma is None else values * gamma
    return scaled if beta is None else scaled + beta


def _axes(layer: Any, inputs: Any) -> list[int]:
    given = [layer.axis] if isinstance(layer.axis, int) else layer.axis
    return sorted(axis % len(inputs.shape) for axis in given)


def _along(weight: Any, inputs: Any, axes: list[int]) -> Any:
    """A weight with the axes of the inputs; None where the layer has none."""
    import tensorflow as tf

    if weight is None:
        return None
    shape = [inputs.shape[n] if n in axes else 1 for n in range(len(inputs.shape))]
    return tf.reshape(tf.convert_to_tensor(weight), shape)
