"""Layers computed by operators that LiteRT has in integers, where Keras takes others.

Guarantees: the same results in float, but for rounding, and for rows that nearly are zeros beside
others (a variance below 1/512 of what is usual in the example). Keras normalizes by ``x * inv -
mean * inv``, whose negation and squares have no integer kernel, and whose two terms are much larger
than their difference; here the mean is taken off first. TensorFlow is imported when it is first
needed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tfopt.compress.integers.attention import Rounded, masked_softmax
from tfopt.compress.integers.convolutions import (
    convolved,
    is_scaling,
    is_volume_convolution,
    scaled_channels,
)
from tfopt.compress.integers.tracing import serves, where_shapes_are_known
from tfopt.compress.model_graph import is_layer, kinds

# An ``EinsumDense`` with several axes of outputs, as the one product that LiteRT makes of it.
#
# Guarantees: the same results. The converter computes such a layer with its outputs in one axis,
# and takes the bias in where it has that axis too; added behind the reshaping, the product in
# front of it has no range of its own in a quantization-aware model, and is refused.

_FLAT = "Z"


def flat_outputs_form(layer: Any) -> Callable[..., Any] | None:
    """The layer's call with its outputs in one axis until the bias is on; None where it has one."""
    if "EinsumDense" not in kinds(layer) or layer.bias is None or "..." in layer.equation:
        return None
    operands, result = layer.equation.replace(" ", "").split("->")
    inputs, kernel = operands.split(",")
    made = "".join(letter for letter in kernel if letter not in inputs)
    summed = kernel.removesuffix(made)
    before = result.removesuffix(made)
    in_order = summed + made == kernel and before + made == result
    several = len(made) > 1 and not set(summed) & set(before)
    if not (in_order and several) or len(layer.bias.shape) > len(made):
        return None
    equation = f"{inputs},{summed}{_FLAT}->{before}{_FLAT}"
    return lambda x, *args, **kwargs: _computed(layer, equation, len(summed), x)


def _computed(layer: Any, equation: str, summed: int, x: Any) -> Any:
    import tensorflow as tf

    kernel, made = layer.kernel, tuple(layer.kernel.shape[summed:])
    flat = tf.einsum(equation, x, tf.reshape(kernel, [*kernel.shape[:summed], -1]))
    flat = flat + tf.reshape(tf.broadcast_to(tf.cast(layer.bias, x.dtype), made), [-1])
    shape = tf.shape(flat)[:-1] if None in flat.shape[1:] else [-1, *flat.shape[1:-1]]
    result = tf.reshape(flat, tf.concat([shape, made], axis=0))
    return result if layer.activation is None else layer.activation(result)


# Averages over the steps that a mask leaves, as LiteRT divides in integers.
#
# Guarantees: the same averages in float, but for rounding, and zero where no step is left, for
# which Keras gives no number. LiteRT's DIV gives the lowest value of all where what it divides is
# one step below zero: what is above zero and what is below it are divided apart, and it never is.
# TensorFlow is imported when it is first needed.


def average_form(layer: Any) -> Callable[..., Any] | None:
    """The ``call`` of an average over steps; None for other layers."""
    if "GlobalAveragePooling1D" in kinds(layer) and is_layer(layer):
        return partial(_average, layer, layer.call)
    return None


def _average(layer: Any, plain: Callable[..., Any], inputs: Any, mask: Any = None) -> Any:
    import tensorflow as tf

    if mask is None:
        return plain(inputs)
    last = layer.data_format == "channels_last"
    steps, features = (1, 2) if last else (2, 1)
    kept = tf.cast(tf.expand_dims(mask, features), tf.bool)
    total = tf.reduce_sum(tf.where(kept, inputs, tf.zeros([], inputs.dtype)), steps, layer.keepdims)
    count = tf.reduce_sum(tf.cast(kept, inputs.dtype), steps, layer.keepdims)
    divisor = tf.maximum(count, 1.0)
    return tf.nn.relu(total) / divisor - tf.nn.relu(total * -1.0) / divisor


# Quotients as LiteRT divides in integers: a number by the values, and the result multiplied.
#
# Guarantees: the same results in float, but for rounding. LiteRT's DIV gives the lowest value of
# all where what it divides is one step below zero; of a number it is right. And while the
# converter looks for ranges it runs an older kernel, which refuses integers of zero also where
# they stand for another value: so its result is none that training gave a range. TensorFlow is
# imported when it is first needed.


def quotient_form(part: Any) -> Callable[..., Any] | None:
    """The ``call`` of a division; None for other operations."""
    return partial(_quotient, part.call) if kinds(part) & {"Divide", "TrueDivide"} else None


def _quotient(plain: Callable[..., Any], x1: Any, x2: Any) -> Any:
    if _is_float(x1) and _is_float(x2):
        return x1 * (1.0 / x2)
    if isinstance(x1, int | float) and _is_float(x2):
        # A product with one would be dropped.
        return (x1 / 2 / x2) * 2.0
    return plain(x1, x2)


def _is_float(values: Any) -> bool:
    import tensorflow as tf

    return bool(tf.is_tensor(values) and values.dtype == tf.float32)


# Functions of each value computed by operators that LiteRT has in integers, as activations are.
#
# Guarantees: the same results in float, but for rounding; and no value on the way is much larger
# than the result, which 256 values could not tell apart: exponentials are only of negative
# numbers. TensorFlow is imported when it is first needed.

Function = Callable[..., Any]

_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772, 1.0507009873554805


def own_activation(part: Any) -> Any:
    """The function that a layer keeps as its activation, wherever its ``call`` takes it.

    A loop computes with its cell's, as it is, and what cannot be set on the layer stays too.
    """
    return None if "RNN" in kinds(part) else vars(part).get("activation")


def activation_form(function: Any) -> Function | None:
    """What stands for one of Keras's functions when it is served; None where it does itself.

    It takes the settings that Keras's takes, which a user's ``call`` may give.
    """
    if not str(getattr(function, "__module__", "")).startswith("keras."):
        return None
    return _FUNCTIONS.get(getattr(function, "__name__", ""))


def activation_layer_form(part: Any) -> Function | None:
    """The same for a layer or an operation that is nothing but a function of each value."""
    names = kinds(part)
    for name, (form, settings) in _PARTS.items():
        if name in names:
            return partial(form, **{own: getattr(part, theirs) for own, theirs in settings.items()})
    if "ReLU" in names and (part.negative_slope and not part.threshold):
        return partial(_leaky_relu, slope=part.negative_slope, highest=part.max_value)
    return None


def _depth(x: Any) -> Any:
    """How far below zero. As a product with its ReLU: a minimum, and a ReLU alone, have one range
    for what comes in and what goes out, which cuts off the other half."""
    import tensorflow as tf

    return tf.nn.relu(x * -1.0)


def _above(x: Any) -> Any:
    return x + _depth(x)


def _celu(x: Any, alpha: float = 1.0) -> Any:
    import tensorflow as tf

    depth = _depth(x)
    return x + depth + alpha * (tf.exp(depth * (-1.0 / alpha)) - 1.0)


def _elu(x: Any, alpha: float = 1.0) -> Any:
    import tensorflow as tf

    depth = _depth(x)
    return x + depth + alpha * (tf.exp(depth * -1.0) - 1.0)


def _selu(x: Any) -> Any:
    return _SELU_SCALE * _elu(x, _SELU_ALPHA)


def _softplus(x: Any) -> Any:
    return _above(x) + _rest(x)


def _log_sigmoid(x: Any) -> Any:
    return -1.0 * (_depth(x) + _rest(x))


def _rest(x: Any) -> Any:
    """``log(1 + exp(-|x|))``: how far softplus is from its two straight lines."""
    import tensorflow as tf

    depth = _depth(x)
    return tf.math.log(1.0 + tf.exp(-1.0 * (x + 2.0 * depth)))


def _mish(x: Any) -> Any:
    import tensorflow as tf

    return x * tf.tanh(_softplus(x))


def _squareplus(x: Any, b: float = 4) -> Any:
    import tensorflow as tf

    return (x + tf.sqrt(x * x + b)) * 0.5


def _soft_shrink(x: Any, threshold: float = 0.5) -> Any:
    return _above(x - threshold) - _depth(x + threshold)


def _hard_shrink(x: Any, threshold: float = 0.5) -> Any:
    """With one zero: zeros in the shape of the values have no integers."""
    import tensorflow as tf

    return tf.where(tf.abs(x) > threshold, x, tf.zeros([1] * len(x.shape), x.dtype))


def _sparse_plus(x: Any) -> Any:
    import tensorflow as tf

    bend = tf.minimum(_above(x + 1.0), 2.0)
    return 0.25 * bend * bend + _above(x - 1.0)


def _leaky_relu(x: Any, slope: float, highest: float | None) -> Any:
    import tensorflow as tf

    above = _above(x) if highest is None else tf.minimum(_above(x), highest)
    return above - slope * _depth(x)


_FUNCTIONS: dict[str, Function] = {
    "elu": _elu,
    "selu": _selu,
    "celu": _celu,
    "softplus": _softplus,
    "log_sigmoid": _log_sigmoid,
    "mish": _mish,
    "squareplus": _squareplus,
    "soft_shrink": _soft_shrink,
    "hard_shrink": _hard_shrink,
    "sparse_plus": _sparse_plus,
}
# By the class of a layer or an operation: its form, and where each setting of it is found.
_PARTS: dict[str, tuple[Callable[..., Any], dict[str, str]]] = {
    "ELU": (_elu, {"alpha": "alpha"}),
    "Elu": (_elu, {"alpha": "alpha"}),
    "Selu": (_selu, {}),
    "Celu": (_celu, {"alpha": "alpha"}),
    "Softplus": (_softplus, {}),
    "LogSigmoid": (_log_sigmoid, {}),
    "Mish": (_mish, {}),
    "Squareplus": (_squareplus, {"b": "b"}),
    "SoftShrink": (_soft_shrink, {"threshold": "threshold"}),
    "HardShrink": (_hard_shrink, {"threshold": "threshold"}),
    "SparsePlus": (_sparse_plus, {}),
    "Square": (lambda x: x * x, {}),
    "Negative": (lambda x: x * -1.0, {}),
}


Form = Callable[..., Any]
# No inverse is over 23 times what is usual.
_LITTLE = 1 / 512


def as_they_are(values: Any, place: str) -> Any:
    """Values that nothing is done to: the conversion rounds them."""
    return values


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
    if "Softmax" in names and is_layer(layer):
        return partial(_softmax, layer, layer.call)
    either = quotient_form(layer) or average_form(layer) or flat_outputs_form(layer)
    if either is not None:
        return either
    own = activation_layer_form(layer)
    return None if own is None else lambda inputs, *args, **kwargs: own(inputs)


def _softmax(layer: Any, plain: Form, inputs: Any, mask: Any = None, **rest: Any) -> Any:
    several = isinstance(layer.axis, list | tuple) and len(layer.axis) > 1
    if mask is None or several:
        return plain(inputs, mask=mask, **rest)
    return masked_softmax(layer, inputs, mask)


def places_of_normalization(layer: Any) -> tuple[str, ...]:
    """Where LiteRT rounds inside the normalization that :func:`normalized` computes, in order."""
    names = kinds(layer)
    if getattr(layer, "rms_scaling", False) or not names & set(_FORMS):
        return ()
    if "RMSNormalization" in names:
        behind = 1
    else:
        # Of unit normalization neither is there.
        behind = sum(bool(getattr(layer, name, False)) for name in ("scale", "center"))
    centered = () if names & {"RMSNormalization", "UnitNormalization"} else ("mean", "centered")
    ends = ("normalized", "scaled")[:behind]
    return (*centered, "squares", "mean_square", "variance", "inverse", *ends)


def normalized(layer: Any, inputs: Any, rounded: Rounded) -> Any:
    """What a normalization gives, with ``rounded`` at its places."""
    form = next(form for name, form in _FORMS.items() if name in kinds(layer))
    return form(layer, inputs, rounded)


def _layer_normalization(layer: Any, inputs: Any, rounded: Rounded = as_they_are) -> Any:
    axes = _axes(layer, inputs)
    if all(inputs.shape[axis] == 1 for axis in axes):
        # A value less itself: a range without width, which ends the conversion.
        return _always(_along(layer.beta, inputs, axes, None), inputs)
    gamma, beta = _along(layer.gamma, inputs, axes, 1.0), _along(layer.beta, inputs, axes, 0.0)
    return _scaled(_standardized(inputs, axes, layer.epsilon, rounded), gamma, beta, rounded)


def _always(value: Any, inputs: Any) -> Any:
    """The same value, or zero, in the shape of the inputs."""
    import tensorflow as tf

    value = tf.zeros([1] * len(inputs.shape), inputs.dtype) if value is None else value
    return tf.broadcast_to(value, tf.shape(inputs))


def _rms_normalization(layer: Any, inputs: Any, rounded: Rounded = as_they_are) -> Any:
    axes = _axes(layer, inputs)
    divided = _divided(inputs, axes, layer.epsilon, rounded)
    return _scaled(divided, _along(layer.scale, inputs, axes, 1.0), None, rounded)


def _unit_normalization(layer: Any, inputs: Any, rounded: Rounded = as_they_are) -> Any:
    import tensorflow as tf

    squares = rounded(inputs * inputs, "squares")
    total = rounded(tf.reduce_sum(squares, _axes(layer, inputs), keepdims=True), "mean_square")
    return inputs * _inverse(total, 1e-12, rounded)


def _group_normalization(layer: Any, inputs: Any, rounded: Rounded = as_they_are) -> Any:
    import tensorflow as tf

    grouped = layer._reshape_into_groups(inputs)
    own = len(grouped.shape) - 2 if layer.axis == -1 else layer.axis
    axes = [axis for axis in range(1, len(grouped.shape)) if axis != own]
    shape = layer._create_broadcast_shape(inputs.shape)
    gamma = _acting(layer.gamma if layer.scale else None, 1.0)
    beta = _acting(layer.beta if layer.center else None, 0.0)
    gamma, beta = (
        None if weight is None else tf.cast(tf.reshape(weight, shape), inputs.dtype)
        for weight in (gamma, beta)
    )
    standard = _standardized(grouped, axes, layer.epsilon, rounded)
    return tf.reshape(_scaled(standard, gamma, beta, rounded), tf.shape(inputs))


_FORMS: dict[str, Form] = {
    "LayerNormalization": _layer_normalization,
    "RMSNormalization": _rms_normalization,
    "UnitNormalization": _unit_normalization,
    "GroupNormalization": _group_normalization,
}


def _standardized(values: Any, axes: list[int], epsilon: float, rounded: Rounded) -> Any:
    import tensorflow as tf

    mean = rounded(tf.reduce_mean(values, axes, keepdims=True), "mean")
    return _divided(rounded(values - mean, "centered"), axes, epsilon, rounded)


def _divided(values: Any, axes: list[int], epsilon: float, rounded: Rounded) -> Any:
    """The values by the root of their mean square, as a product: ``square`` has no integers."""
    import tensorflow as tf

    squares = rounded(values * values, "squares")
    mean_square = rounded(tf.reduce_mean(squares, axes, keepdims=True), "mean_square")
    return values * _inverse(mean_square, epsilon, rounded)


def _inverse(square: Any, epsilon: float, rounded: Rounded) -> Any:
    """One by the root of a square, which is no less than a little of what is usual in its example.

    Of a row of zeros (padding, a class token that begins as zeros) the inverse is a thousand times
    that of others, of which nothing would be left in 256 values.
    """
    import tensorflow as tf

    beside = [axis for axis in range(1, len(square.shape)) if square.shape[axis] != 1]
    if beside:
        usual = tf.reduce_mean(square, beside, keepdims=True)
        square = tf.maximum(square, usual * _LITTLE)
    variance = square + epsilon
    if serves():
        # Its range is found with the examples: rounded to zero, it would have no inverse there.
        return rounded(tf.math.rsqrt(variance), "inverse")
    near = rounded(variance, "variance")
    # Of what is rounded to zero LiteRT gives the largest inverse that there is.
    return rounded(tf.math.rsqrt(tf.where(near > 0, near, variance)), "inverse")


def _scaled(values: Any, gamma: Any, beta: Any, rounded: Rounded) -> Any:
    behind = [weight for weight in (gamma, beta) if weight is not None]
    if behind:
        values = rounded(values, "normalized")
    if gamma is not None:
        values = values * gamma
    if len(behind) == 2:
        values = rounded(values, "scaled")
    return values if beta is None else values + beta


def _axes(layer: Any, inputs: Any) -> list[int]:
    given = [layer.axis] if isinstance(layer.axis, int) else layer.axis
    return sorted(axis % len(inputs.shape) for axis in given)


def _along(weight: Any, inputs: Any, axes: list[int], neutral: float | None) -> Any:
    """A weight with the axes of the inputs; None where there is none that acts."""
    import tensorflow as tf

    if _acting(weight, neutral) is None:
        return None
    shape = [inputs.shape[n] if n in axes else 1 for n in range(len(inputs.shape))]
    return tf.cast(tf.reshape(tf.convert_to_tensor(weight), shape), inputs.dtype)


def _acting(weight: Any, neutral: float | None) -> Any:
    """A weight, but for one that a file would hold as a constant that changes nothing.

    The converter drops what multiplies by one, and then finds two ranges for the same values.
    """
    import tensorflow as tf

    if weight is None or neutral is None or not serves():
        return weight
    with tf.init_scope():
        return weight if (weight.numpy() != neutral).any() else None
