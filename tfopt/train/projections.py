"""Project all tokens of a batch by one matrix product.

Keras multiplies example by example. The gradient of a kernel is then one product for each example,
rounded to half precision, and a sum over them: three times the memory traffic of one product.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tfopt.hooks import Hooks
from tfopt.keras_internals import layers_inside


def merge_examples(attention: Any, hooks: Hooks) -> None:
    """Merge the examples of a batch in the projections of an attention layer."""
    for layer in layers_inside(attention):
        if _is_projection(layer):
            hooks.replace(layer, "call", partial(_merged, layer.call))


def _is_projection(layer: Any) -> bool:
    """Return whether a layer computes the same for each example and token, and keeps their axes."""
    import keras

    if not isinstance(layer, keras.layers.EinsumDense):
        return False
    inputs, _, rest = layer.equation.partition(",")
    kernel, _, outputs = rest.partition("->")
    examples_and_tokens = inputs[:2]
    return outputs[:2] == examples_and_tokens and not set(examples_and_tokens) & {
        *kernel,
        *(layer.bias_axes or ""),
    }


def _merged(project: Callable[..., Any], inputs: Any, *given: Any, **named: Any) -> Any:
    import keras

    batch, tokens, *features = inputs.shape
    if None in (batch, tokens, *features):
        return project(inputs, *given, **named)
    merged = keras.ops.reshape(inputs, (1, batch * tokens, *features))
    outputs = project(merged, *given, **named)
    return keras.ops.reshape(outputs, (batch, tokens, *outputs.shape[2:]))
