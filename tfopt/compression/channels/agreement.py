"""Whether a smaller model computes what the given one does without the removed channels.

Guarantees: a difference beyond rounding is an error. Not compared are models of which no example
is known, since their inputs leave a size open, and those that do not run here, as images with
their channels first on a CPU; the tests compare every kind of layer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tfopt.compression.channels.graph import graph_of
from tfopt.errors import UserError

if TYPE_CHECKING:
    import keras

# Sums over fewer channels are taken in another order. Over some hundred layers in float32 that
# stays a factor of ten below this, relative to the largest output; half precision has 8 bits.
_TOLERANCE, _IN_HALF_PRECISION = 1e-3, 0.1


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
    example = _example(twin)
    if example is None:
        return None
    try:
        expected = _outputs(twin, example)
    except Exception:
        return None  # what the given model cannot do cannot be compared
    found = [
        float(np.abs(one - other).max(initial=0.0) / max(np.abs(other).max(initial=0.0), 1e-6))
        for one, other in zip(_outputs(smaller, example), expected, strict=True)
    ]
    return max(found)


def _example(model: keras.Model) -> Any:
    """Random values for each input; None where a size is open, or an input holds text."""
    import keras

    graph = graph_of(model)
    generator = np.random.default_rng(0)
    found = []
    for tensor in graph.inputs:
        if None in tensor.shape[1:] or tensor.dtype == "string":
            return None
        # Of the number of a word or a class all that is known is that 0 is one.
        values = generator.normal(size=(1, *tensor.shape[1:])) * ("float" in tensor.dtype)
        found.append(keras.ops.convert_to_tensor(values, dtype=tensor.dtype))
    return keras.tree.pack_sequence_as(graph._inputs_struct, found)


def _outputs(model: keras.Model, example: Any) -> list[Any]:
    import keras

    found = keras.tree.flatten(model(example, training=False))
    return [
        np.asarray(keras.ops.convert_to_numpy(keras.ops.cast(each, "float32"))) for each in found
    ]


def _tolerance(layer: Any) -> float:
    return _IN_HALF_PRECISION if layer.compute_dtype in ("float16", "bfloat16") else _TOLERANCE
