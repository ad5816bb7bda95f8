"""Whether a smaller model computes what the given one does without the removed channels.

Guarantees: a difference beyond rounding is an error. Sizes that inputs leave open are tried until
the given model runs; not compared is only what does not run here at all, as images with their
channels first on a CPU; the tests compare every kind of layer.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from tfopt.compression.channels.graph import graph_of
from tfopt.errors import UserError

if TYPE_CHECKING:
    import keras

# Sums over fewer channels are taken in another order. Over some hundred layers in float32 that
# stays a factor of ten below this, relative to the largest output; half precision has 8 bits.
_TOLERANCE, _IN_HALF_PRECISION = 1e-3, 0.1
# What is tried for a size that is left open: 32 fits what is halved five times.
_SIZES = (32, 128)
# Of the number of a word or a class all that is known is that 0 is one, and nearly always 1.
_NUMBERS = (2, 1)


def require_agreement(smaller: keras.Model, twin: keras.Model) -> float | None:
    """The largest difference of two models on a random example, where it is rounding."""
    difference = largest_difference(smaller, twin)
    limit = max(map(_tolerance, twin._flatten_layers()))
    if difference is not None and not difference <= limit:
        raise UserError(
            f"The model {twin.name!r} without the channels does not compute what it did before "
            "without using them.",
            expected=f"outputs that differ by at most {limit:.3g} of the largest",
            received=f"{difference:.3g}",
            fix="leave out layers whose code depends on its widths, by layers=",
        )
    return difference


def largest_difference(smaller: keras.Model, twin: keras.Model) -> float | None:
    """The largest difference of two models' outputs, relative to these; None: not compared."""
    example = expected = None
    for example in _examples(twin):
        try:
            expected = _outputs(twin, example)
        except Exception:
            continue  # what the given model cannot do cannot be compared
        if all(np.isfinite(each).all() for each in expected):
            break
        expected = None  # the logarithm of what is below zero, say
    if expected is None:
        return None
    found = [
        float(np.abs(one - other).max(initial=0.0) / max(np.abs(other).max(initial=0.0), 1e-6))
        for one, other in zip(_outputs(smaller, example), expected, strict=True)
    ]
    return float(np.max(found))  # which NaN in any of them makes NaN


def _examples(model: keras.Model) -> Iterator[Any]:
    """Random values for each input, the likeliest to fit first."""
    import keras

    graph = graph_of(model)
    is_open = any(None in tensor.shape[1:] for tensor in graph.inputs)
    has_numbers = any("int" in tensor.dtype for tensor in graph.inputs)
    sizes = _SIZES if is_open else _SIZES[:1]
    numbers = _NUMBERS if has_numbers else _NUMBERS[:1]
    for positive, size, number in product((False, True), sizes, numbers):
        found = [_values(tensor, size, number, positive) for tensor in graph.inputs]
        yield keras.tree.pack_sequence_as(graph._inputs_struct, found)


def _values(tensor: Any, size: int, numbers: int, positive: bool) -> Any:
    import keras
    import tensorflow as tf

    generator = np.random.default_rng(0)
    shape = [tensor.shape[0] or 1, *(each or size for each in tensor.shape[1:])]
    if tensor.dtype == "string":
        return tf.fill(shape, "a text")
    is_number = "float" not in tensor.dtype
    values = generator.integers(0, numbers, shape) if is_number else generator.normal(size=shape)
    values = np.abs(values) if positive else values
    return keras.ops.convert_to_tensor(values, dtype=tensor.dtype)


def _outputs(model: keras.Model, example: Any) -> list[Any]:
    import keras

    found = keras.tree.flatten(model(example, training=False))
    return [
        np.asarray(keras.ops.convert_to_numpy(keras.ops.cast(each, "float32"))) for each in found
    ]


def _tolerance(layer: Any) -> float:
    return _IN_HALF_PRECISION if layer.compute_dtype in ("float16", "bfloat16") else _TOLERANCE
