"""Whether a smaller model computes what the given one does without the removed channels.

Guarantees: a difference beyond rounding is an error. Not compared are models of which no example
is known, since their inputs leave a size open, and those that do not run here, as images with
their channels first on a CPU; the tests compare every kind of layer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tfopt.errors import UserError

if TYPE_CHECKING:
    import keras

# Sums over fewer channels are taken in another order. Over some hundred layers in float32 that
# stays a factor of ten below this, relative to the largest output; half precision has 8 bits.
_TOLERANCE = {"float32": 1e-3, "float64": 1e-9}
_HALF_PRECISION = 0.1


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
    inputs = example(twin)
    if inputs is None:
        return None
    try:
        expected = _outputs(twin, inputs)
    except Exception:
        return None  # what the given model cannot do cannot be compared
    found = [
        float(np.abs(one - other).max(initial=0.0) / max(np.abs(other).max(initial=0.0), 1e-6))
        for one, other in zip(_outputs(smaller, inputs), expected, strict=True)
    ]
    return max(found)


def example(model: keras.Model) -> list[Any] | None:
    """One random example; None where a size is open."""
    generator = np.random.default_rng(0)
    found = []
    for tensor in model.inputs:
        if None in tensor.shape[1:]:
            return None
        values = generator.normal(size=(1, *tensor.shape[1:]))
        # Of the number of a word or a class all that is known is that 0 is one.
        found.append(np.abs(values * ("float" in str(tensor.dtype))).astype(tensor.dtype))
    return found


def _outputs(model: keras.Model, inputs: list[Any]) -> list[Any]:
    import keras

    given = keras.tree.pack_sequence_as(model._inputs_struct, inputs)
    found = keras.tree.flatten(model(given, training=False))
    return [np.asarray(keras.ops.convert_to_numpy(each), dtype=np.float64) for each in found]


def _tolerance(layer: Any) -> float:
    return _TOLERANCE.get(layer.compute_dtype, _HALF_PRECISION)
