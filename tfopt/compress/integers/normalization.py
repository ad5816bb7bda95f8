"""Normalizations with the values that are rounded between their operators.

Keras computes ``x * inv - mean * inv``, whose two terms are much larger than their difference; here
the mean is taken off first. In float the results differ only for rows that nearly are zeros beside
others (a variance below 1/512 of what is usual in the example).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfopt.compress.integers.fake_quant import Rounded
from tfopt.compress.model_graph import kinds

Form = Callable[[Any, Any, Rounded], Any]

# No inverse is over 23 times what is usual.
_LITTLE = 1 / 512


def places_of_normalization(layer: Any) -> tuple[str, ...]:
    """Return the places inside what :func:`normalization_form` computes, in order."""
    if normalization_form(layer) is None:
        return ()
    squared = ("squares", "mean_square", "variance", "inverse")
    if "RMSNormalization" in kinds(layer):
        return (*squared, "normalized")
    ends = ("normalized", "scaled")[: layer.scale + layer.center]
    return ("mean", "centered", *squared, *ends)


def normalization_form(layer: Any) -> Form | None:
    """Return a function of a normalization, its inputs and what is done at its places.

    None for other layers.
    """
    if getattr(layer, "rms_scaling", False):
        return None
    names = kinds(layer)
    return next((form for name, form in _FORMS.items() if name in names), None)


def _layer_normalization(layer: Any, inputs: Any, rounded: Rounded) -> Any:
    import tensorflow as tf

    axes = _axes(layer, inputs)
    mean = rounded(tf.reduce_mean(inputs, axes, keepdims=True), "mean")
    divided = _divided(rounded(inputs - mean, "centered"), axes, layer.epsilon, rounded)
    gamma, beta = _along(layer.gamma, inputs, axes), _along(layer.beta, inputs, axes)
    return _scaled(divided, gamma, beta, rounded)


def _rms_normalization(layer: Any, inputs: Any, rounded: Rounded) -> Any:
    axes = _axes(layer, inputs)
    divided = _divided(inputs, axes, layer.epsilon, rounded)
    return _scaled(divided, _along(layer.scale, inputs, axes), None, rounded)


_FORMS: dict[str, Form] = {
    "LayerNormalization": _layer_normalization,
    "RMSNormalization": _rms_normalization,
}


def _divided(values: Any, axes: list[int], epsilon: float, rounded: Rounded) -> Any:
    """Divide by the root of the mean square."""
    import tensorflow as tf

    squares = rounded(values * values, "squares")
    mean_square = rounded(tf.reduce_mean(squares, axes, keepdims=True), "mean_square")
    return values * _inverse(mean_square, epsilon, rounded)


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


def _scaled(values: Any, gamma: Any, beta: Any, rounded: Rounded) -> Any:
    if gamma is not None or beta is not None:
        values = rounded(values, "normalized")
    if gamma is not None:
        values = values * gamma
    if gamma is not None and beta is not None:
        values = rounded(values, "scaled")
    return values if beta is None else values + beta


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
