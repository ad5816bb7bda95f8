"""Normalizations with rounded values between their operators.

Keras computes ``x * inv - mean * inv``, whose terms are much larger than their difference; here the
mean is subtracted first. In float the results differ only for rows with a variance below 1/512 of
the mean of their example.
"""

from __future__ import annotations

from typing import Any

from tfopt.compress.integers.fake_quant import Rounded
from tfopt.compress.model_graph import kinds

_NORMALIZATIONS = frozenset({"LayerNormalization", "RMSNormalization"})
# The lowest variance relative to the mean of the example: no inverse is above 23 times the usual.
_LOWEST = 1 / 512


def places_of_normalization(layer: Any) -> tuple[str, ...]:
    """Return the rounded places inside a normalization, in order; empty for other layers."""
    names = kinds(layer)
    if getattr(layer, "rms_scaling", False) or not names & _NORMALIZATIONS:
        return ()
    squared = ("squares", "mean_square", "variance", "inverse")
    if "RMSNormalization" in names:
        return (*squared, "normalized")
    ends = ("normalized", "scaled")[: layer.scale + layer.center]
    return ("mean", "centered", *squared, *ends)


def normalized(layer: Any, inputs: Any, rounded: Rounded) -> Any:
    """Return the result of a normalization, with ``rounded`` at its places."""
    import tensorflow as tf

    axes = _axes(layer, inputs)
    if "RMSNormalization" in kinds(layer):
        gamma, beta = layer.scale, None
    else:
        gamma, beta = layer.gamma, layer.beta
        mean = rounded(tf.reduce_mean(inputs, axes, keepdims=True), "mean")
        inputs = rounded(inputs - mean, "centered")
    squares = rounded(inputs * inputs, "squares")
    mean_square = rounded(tf.reduce_mean(squares, axes, keepdims=True), "mean_square")
    values = inputs * _inverse(mean_square, layer.epsilon, rounded)
    gamma, beta = (_along(weight, inputs, axes) for weight in (gamma, beta))
    if gamma is not None or beta is not None:
        values = rounded(values, "normalized")
    if gamma is not None:
        values = values * gamma
    if gamma is not None and beta is not None:
        values = rounded(values, "scaled")
    return values if beta is None else values + beta


def _inverse(square: Any, epsilon: float, rounded: Rounded) -> Any:
    """Return the inverse root of a mean square, which is clipped relative to its example's mean.

    The inverse of a row of zeros (padding, a zero class token) is a thousand times that of others,
    for which none of the 256 values would be left.
    """
    import tensorflow as tf

    beside = [axis for axis in range(1, len(square.shape)) if square.shape[axis] != 1]
    if beside:
        usual = tf.reduce_mean(square, beside, keepdims=True)
        square = tf.maximum(square, usual * _LOWEST)
    variance = square + epsilon
    near = rounded(variance, "variance")
    if near is not variance:
        # For a variance rounded to zero an int8 file has the largest possible inverse.
        near = tf.where(near > 0, near, variance)
    return rounded(tf.math.rsqrt(near), "inverse")


def _axes(layer: Any, inputs: Any) -> list[int]:
    axes = [layer.axis] if isinstance(layer.axis, int) else layer.axis
    return sorted(axis % len(inputs.shape) for axis in axes)


def _along(weight: Any, inputs: Any, axes: list[int]) -> Any:
    """Return a weight broadcast to the axes of the inputs, or None."""
    import tensorflow as tf

    if weight is None:
        return None
    shape = [inputs.shape[n] if n in axes else 1 for n in range(len(inputs.shape))]
    return tf.cast(tf.reshape(tf.convert_to_tensor(weight), shape), inputs.dtype)
