"""Normalizations with the values that are rounded between their operators.

Keras computes ``x * inv - mean * inv``, whose two terms are much larger than their difference; here
the mean is taken off first. In float the results differ only for rows that nearly are zeros beside
others (a variance below 1/512 of what is usual in the example).
"""

from __future__ import annotations

from typing import Any

from tfopt.compress.integers.fake_quant import Rounded
from tfopt.compress.model_graph import kinds

_NORMALIZATIONS = frozenset({"LayerNormalization", "RMSNormalization"})
# No inverse is over 23 times what is usual.
_LITTLE = 1 / 512


def places_of_normalization(layer: Any) -> tuple[str, ...]:
    """Return the places inside a layer that :func:`normalized` computes, in order; else none."""
    names = kinds(layer)
    if getattr(layer, "rms_scaling", False) or not names & _NORMALIZATIONS:
        return ()
    squared = ("squares", "mean_square", "variance", "inverse")
    if "RMSNormalization" in names:
        return (*squared, "normalized")
    ends = ("normalized", "scaled")[: layer.scale + layer.center]
    return ("mean", "centered", *squared, *ends)


def normalized(layer: Any, inputs: Any, rounded: Rounded) -> Any:
    """Return what a normalization gives, with ``rounded`` at its places."""
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
    """Return one by the root of a square, which is no less than a little of its example's mean.

    Of a row of zeros (padding, a class token that begins as zeros) the inverse is a thousand times
    that of others, of which nothing would be left in 256 values.
    """
    import tensorflow as tf

    beside = [axis for axis in range(1, len(square.shape)) if square.shape[axis] != 1]
    if beside:
        usual = tf.reduce_mean(square, beside, keepdims=True)
        square = tf.maximum(square, usual * _LITTLE)
    variance = square + epsilon
    near = rounded(variance, "variance")
    if near is not variance:
        # Of what is rounded to zero an int8 file gives the largest inverse that there is.
        near = tf.where(near > 0, near, variance)
    return rounded(tf.math.rsqrt(near), "inverse")


def _axes(layer: Any, inputs: Any) -> list[int]:
    given = [layer.axis] if isinstance(layer.axis, int) else layer.axis
    return sorted(axis % len(inputs.shape) for axis in given)


def _along(weight: Any, inputs: Any, axes: list[int]) -> Any:
    """Return a weight with the axes of the inputs; None where there is none."""
    import tensorflow as tf

    if weight is None:
        return None
    shape = [inputs.shape[n] if n in axes else 1 for n in range(len(inputs.shape))]
    return tf.cast(tf.reshape(tf.convert_to_tensor(weight), shape), inputs.dtype)
