"""What is fake-quantized inside a layer that LiteRT computes by several operators, each rounded.

Guarantees: but for what is done at its places the layer gives what it gives without; a layer whose
``call`` is a user's own has no places.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfopt.compression.graph import computes_as_keras, is_layer
from tfopt.compression.integers.attention import PLACES, Rounded, is_attention_of_many_heads
from tfopt.compression.integers.forms import normalized, places_of_normalization
from tfopt.compression.integers.separable import has_two_parts, in_two_parts


def places_inside(part: Any) -> tuple[str, ...]:
    """The names of the places, in the order in which they are computed."""
    if has_two_parts(part):
        return ("between",)
    if is_attention_of_many_heads(part):
        return PLACES
    if is_layer(part) and computes_as_keras(part):
        return places_of_normalization(part)
    return ()


def rounded_inside(layer: Any, rounded: Rounded) -> Callable[..., Any] | None:
    """The layer's ``call`` with ``rounded`` at its places; None where a method of it has them."""
    if is_attention_of_many_heads(layer):
        return None
    if has_two_parts(layer):
        return lambda inputs: in_two_parts(layer, lambda deep: rounded(deep, "between"), inputs)

    def call(inputs: Any) -> Any:
        import tensorflow as tf

        # Squares of half precision overflow, and so Keras computes this in float32 as well.
        result = normalized(layer, tf.cast(inputs, tf.float32), rounded)
        return tf.cast(result, layer.compute_dtype)

    return call
