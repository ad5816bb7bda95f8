"""Layers computed by operators that LiteRT has in integers, where Keras takes others.

Guarantees: the same results in float, but for rounding. Keras normalizes by ``x * inv - mean *
inv``, whose negation and squares have no integer kernel, and whose two terms are much larger than
their difference; here the mean is taken off first. TensorFlow is imported when it is first needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
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


@contextmanager
def unrolled_soundly(model: Any) -> Iterator[None]:
    """Inside it unrolled recurrent layers begin with constants, and masks go backwards with them.

    Of zeros Keras makes as many as there are examples. Multiplied by a kernel, those have a range
    without width, which LiteRT cannot run; and ``tf.zeros_like``, for steps that a mask hides, has
    no integer kernel. Products of constants are folded by the converter. And of a layer that goes
    backwards (Bidirectional) Keras hides the wrong steps: unrolled, it does not turn the mask.
    """
    import tensorflow as tf

    recurrent = [layer for layer in model._flatten_layers() if "RNN" in kinds(layer)]
    # A loop needs its state in the shape that it will have.
    if not recurrent or not all(layer.unroll for layer in recurrent):
        yield
        return
    # Its package has a function of that name, which hides the module from an import statement.
    steps: Any = import_module("keras.src.backend.tensorflow.rnn")
    own = [layer for layer in recurrent if _begins_as_keras_does(layer)]
    for layer in own:
        vars(layer)["get_initial_state"] = partial(_one_for_all, layer.get_initial_state)
        vars(layer)["inner_loop"] = partial(_turned, layer, layer.inner_loop)
    steps.tf = _ConstantZeros()
    try:
        yield
    finally:
        steps.tf = tf
        for layer in own:
            del vars(layer)["get_initial_state"], vars(layer)["inner_loop"]


def _begins_as_keras_does(layer: Any) -> bool:
    return str(type(layer).get_initial_state.__module__).startswith("keras.")


def _one_for_all(initial_state: Callable[[int], Any], batch_size: Any) -> Any:
    return initial_state(1)


def _turned(layer: Any, plain: Callable[..., Any], sequences: Any, mask: Any, **rest: Any) -> Any:
    """A masked loop from the end, as one from the beginning of what is turned round."""
    import tensorflow as tf

    if mask is None or not layer.go_backwards:
        return plain(sequences=sequences, mask=mask, **rest)
    layer.go_backwards = False
    try:
        return plain(sequences=tf.reverse(sequences, [1]), mask=tf.reverse(mask, [1]), **rest)
    finally:
        layer.go_backwards = True


class _ConstantZeros:
    """TensorFlow, but for one function."""

    def __getattr__(self, name: str) -> Any:
        import tensorflow as tf

        return getattr(tf, name)

    def zeros_like(self, values: Any) -> Any:
        """Zeros of as many channels, which stand for all examples and steps."""
        import tensorflow as tf

        if values.shape.rank is None or values.shape[-1] is None:
            return tf.zeros_like(values)
        return tf.zeros([1] * (values.shape.rank - 1) + [values.shape[-1]], values.dtype)


def _layer_normalization(layer: Any, inputs: Any) -> Any:
    axes = _axes(layer, inputs)
    normalized = _standardized(inputs, axes, layer.epsilon)
    return _scaled(normalized, _along(layer.gamma, inputs, axes), _along(layer.beta, inputs, axes))


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
