"""Attention as an int8 file computes it, with masks that leave the scores their steps.

Keras and users hide a score by an enormous negative number; of 256 values between that and the
scores none is left for the scores. Here what is hidden is a little below the lowest score of its
row, which changes shares by a quarter of a percent at most.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from tfopt.compress.integers.fake_quant import Rounded
from tfopt.compress.model_graph import Place, is_layer, kinds

PLACES = ("query", "scores", "hidden", "context")
"""Where LiteRT rounds inside attention of many heads, the softmax apart, which is a layer."""

# What is hidden in a row has together at most e ** -6 of the share of the largest.
_BELOW = 6.0
# Where nobody knows how many keys there are.
_LONG = 1024
_MANY_HEADS = frozenset({"MultiHeadAttention", "GroupedQueryAttention"})
ENORMOUS = 1e3
"""Of a score that is so much lower than another no float32 has a share."""
_FOLLOWED_BY = frozenset({"Softmax", "Max", "Amax", *(f"GlobalMaxPooling{n}D" for n in (1, 2, 3))})


def is_attention_of_many_heads(layer: Any) -> bool:
    """Return whether its heads are computed by Keras's own method, along one axis."""
    if not kinds(layer) & _MANY_HEADS or len(getattr(layer, "_attention_axes", None) or [1]) > 1:
        return False
    method = "_compute_attention"
    own = next((c for c in type(layer).__mro__ if method in vars(c)), object)
    return own.__module__.startswith("keras.")


def attention_methods(layer: Any, rounded: Rounded) -> dict[str, Callable[..., Any]]:
    """Return the methods that stand for Keras's own, by name; none for other layers."""
    if is_layer(layer) and is_attention_of_many_heads(layer):
        return {"_compute_attention": partial(_heads, layer, rounded)}
    return {}


def hidden(scores: Any, kept: Any, axis: int = -1) -> Any:
    """Put the scores that are not kept so far below those of their row that they have no share."""
    import tensorflow as tf

    depth = _BELOW + math.log(scores.shape[axis] or _LONG)
    lowest = tf.reduce_min(scores, axis, keepdims=True)
    return tf.where(kept, scores, lowest - depth)


def _heads(
    layer: Any,
    rounded: Rounded,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any = None,
    training: Any = None,
    return_attention_scores: bool = False,
    use_causal_mask: bool = False,
) -> tuple[Any, Any]:
    """Return what the heads gather from the values, and the shares by which they do."""
    from keras import ops

    mask = attention_mask
    if use_causal_mask:
        causal = layer._compute_causal_mask(query, value)
        mask = causal if mask is None else ops.logical_and(ops.cast(mask, "bool"), causal)
    grouped = "GroupedQueryAttention" in kinds(layer)
    scale = layer._inverse_sqrt_head_dim if grouped else layer._inverse_sqrt_key_dim
    query = rounded(ops.multiply(query, ops.cast(scale, query.dtype)), "query")
    dropout = layer.dropout if grouped else layer._dropout
    pair = (query, key) if grouped else (key, query)
    scores = rounded(ops.einsum(layer._dot_product_equation, *pair), "scores")
    if mask is None:
        shares = layer._softmax(scores)
    else:
        while len(mask.shape) < len(scores.shape):
            mask = ops.expand_dims(mask, -3)
        kept = ops.cast(mask, "bool")
        shares = layer._softmax(rounded(hidden(scores, kept), "hidden"))
        # Of a row that is hidden as a whole Keras takes the mean, or nothing, as it has two ways.
        if dropout > 0 or return_attention_scores:
            shares = ops.where(kept, shares, 0.0)
    used = layer._dropout_layer(shares, training=training) if dropout > 0 else shares
    return rounded(ops.einsum(layer._combine_equation, used, value), "context"), shares


def hides_scores(part: Any, known: Mapping[int, Place]) -> bool:
    """Return whether a part only hides scores: its range would hold none of them."""
    place = known[id(part)]
    if place.is_output or not kinds(part) & {"Where", "Add", "Subtract"}:
        return False
    from_these = [
        bool(kinds(after) & _FOLLOWED_BY)
        or getattr(getattr(after, "activation", None), "__name__", "") == "softmax"
        for after in place.after
    ]
    return bool(from_these) and all(from_these) and any(map(_is_given, (part, *place.before)))


def _is_given(part: Any) -> bool:
    """Return whether a part of a graph is called with an enormous number."""
    import keras

    return any(
        _is_enormous(value)
        for node in getattr(part, "_inbound_nodes", None) or ()
        for value in keras.tree.flatten((node.arguments.args, node.arguments.kwargs))
        if not keras.backend.is_keras_tensor(value)
    )


def _is_enormous(value: Any) -> bool:
    try:
        return bool(np.abs(np.asarray(value, "float64")).max(initial=0) >= ENORMOUS)
    except (TypeError, ValueError):
        return False
