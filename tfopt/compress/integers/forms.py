"""The ``call`` of a Keras layer or operation, by operators that LiteRT has in integers.

The results are those of Keras but for rounding.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from tfopt.compress.integers.activations import activation_layer_form
from tfopt.compress.integers.convolutions import convolved, is_volume_convolution
from tfopt.compress.integers.normalization import normalization_form
from tfopt.compress.integers.tracing import Form, where_shapes_are_known
from tfopt.compress.model_graph import kinds

# The letter of an einsum that stands for several axes in one.
_FLAT = "Z"


def integer_form(layer: Any) -> Form | None:
    """Return the ``call`` of a layer or operation in integers; None where its own does."""
    if is_volume_convolution(layer):
        return where_shapes_are_known(layer, convolved)
    normalized = normalization_form(layer)
    if normalized is not None:
        return lambda inputs, *args, **kwargs: normalized(layer, inputs)
    names = kinds(layer)
    if names & {"Divide", "TrueDivide"}:
        return partial(_quotient, layer.call)
    if "EinsumDense" in names:
        return flat_outputs_form(layer)
    function = activation_layer_form(layer)
    return None if function is None else lambda inputs, *args, **kwargs: function(inputs)


def _quotient(plain: Form, x1: Any, x2: Any) -> Any:
    """Divide a number by the values, and multiply by the result.

    While the converter looks for ranges it runs an older kernel of DIV, which refuses integers of
    zero also where they stand for another value: so its result is none that training gave a range.
    """
    if _is_float(x1) and _is_float(x2):
        return x1 * (1.0 / x2)
    if isinstance(x1, int | float) and _is_float(x2):
        # A product with one would be dropped.
        return (x1 / 2 / x2) * 2.0
    return plain(x1, x2)


def _is_float(values: Any) -> bool:
    import tensorflow as tf

    return bool(tf.is_tensor(values) and values.dtype == tf.float32)


def flat_outputs_form(layer: Any) -> Form | None:
    """Return an EinsumDense's ``call`` with its outputs in one axis until the bias is on.

    The converter computes such a layer as one product with its outputs in one axis, and takes the
    bias in where it has that axis too; added after the reshaping, the product before it has no
    range of its own in a quantization-aware model, and is refused. None where there is one axis.
    """
    if layer.bias is None or "..." in layer.equation:
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

    def call(x: Any, *args: Any, **kwargs: Any) -> Any:
        import tensorflow as tf

        kernel, axes = layer.kernel, len(summed)
        outputs = tuple(kernel.shape[axes:])
        flat = tf.einsum(equation, x, tf.reshape(kernel, [*kernel.shape[:axes], -1]))
        flat = flat + tf.reshape(tf.broadcast_to(tf.cast(layer.bias, x.dtype), outputs), [-1])
        shape = tf.shape(flat)[:-1] if None in flat.shape[1:] else [-1, *flat.shape[1:-1]]
        result = tf.reshape(flat, tf.concat([shape, outputs], axis=0))
        return result if layer.activation is None else layer.activation(result)

    return call
