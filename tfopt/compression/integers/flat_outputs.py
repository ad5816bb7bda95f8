"""An ``EinsumDense`` with several axes of outputs, as the one product that LiteRT makes of it.

Guarantees: the same results. The converter computes such a layer with its outputs in one axis, and
takes the bias in where it has that axis too; added behind the reshaping, the product in front of it
has no range of its own in a quantization-aware model, and is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfopt.compression.graph import kinds

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
