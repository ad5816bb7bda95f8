"""Averages over the steps that a mask leaves, as LiteRT divides in integers.

Guarantees: the same averages in float, but for rounding, and zero where no step is left, for which
Keras gives no number. LiteRT's DIV gives the lowest value of all where what it divides is one step
below zero: what is above zero and what is below it are divided apart, and it never is. TensorFlow
is imported when it is first needed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tfopt.compression.graph import is_layer, kinds


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
