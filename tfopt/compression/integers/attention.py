"""Attention as LiteRT computes it in integers, with masks that leave the scores their steps.

Guarantees: what Keras gives, but for rounding and for shares of a quarter of a percent. Keras hides
a score behind an enormous negative number; of 256 values between that and the scores none is left
for the scores. Here what is hidden is a little below the lowest score of its row. A method that is
a user's own stays.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from tfopt.compression.graph import is_layer, kinds

PLACES = ("query", "scores", "hidden", "context")
"""Where LiteRT rounds inside attention of many heads, the softmax apart, which is a layer."""

# What is hidden in a row has together at most e ** -6 of the share of the largest.
_BELOW = 6.0
# Where nobody knows how many keys there are.
_LONG = 1024
_MANY_HEADS = frozenset({"MultiHeadAttention", "GroupedQueryAttention"})
_ONE_HEAD = frozenset({"Attention", "AdditiveAttention"})
Rounded = Callable[[Any, str], Any]
"""What is done to values at a place inside a layer, by the name of the place."""


def is_attention_of_many_heads(layer: Any) -> bool:
    """Whether its heads are computed by Keras's own method, along one axis."""
    if not kinds(layer) & _MANY_HEADS or len(getattr(layer, "_attention_axes", None) or [1]) > 1:
        return False
    return _is_keras(layer, "_compute_attention")


def attention_methods(layer: Any, rounded: Rounded) -> dict[str, Callable[..., Any]]:
    """The methods that stand for a layer's own, by name; none for other layers."""
    if not is_layer(layer):
        return {}
    if is_attention_of_many_heads(layer):
        return {"_compute_attention": partial(_heads, layer, rounded)}
    if kinds(layer) & _ONE_HEAD and _is_keras(layer, "_apply_scores"):
        return {"_apply_scores": partial(_applied, layer._apply_scores)}
    return {}


def masked_softmax(layer: Any, inputs: Any, mask: Any) -> Any:
    """What a Softmax layer gives with a mask, over one axis."""
    import tensorflow as tf

    axis = layer.axis[0] if isinstance(layer.axis, list | tuple) else layer.axis
    kept = mask if mask.dtype == tf.bool else mask > 0.5
    shares = tf.nn.softmax(hidden(inputs, kept, axis), axis)
    # Of a row that is hidden as a whole nothing is left.
    return tf.where(kept, shares, tf.zeros([1] * len(inputs.shape), shares.dtype))


def hidden(scores: Any, kept: Any, axis: int = -1) -> Any:
    """The scores, with those that are not kept below all others of their row."""
    return hidden_at(depth_of_hidden(scores, axis), scores, kept, axis)


def hidden_at(depth: float, scores: Any, kept: Any, axis: Any) -> Any:
    """The scores, with those that are not kept so far below the lowest of their row."""
    import tensorflow as tf

    lowest = tf.reduce_min(scores, axis, keepdims=True)
    return tf.where(kept, scores, lowest - depth)


def depth_of_hidden(scores: Any, axis: int = -1) -> float:
    """How far below the lowest score of its row what is hidden is put."""
    return _BELOW + math.log(scores.shape[axis] or _LONG)


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
    """What the heads gather from the values, and the shares by which they do."""
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


def _applied(
    plain: Callable[..., Any], scores: Any, value: Any, scores_mask: Any = None, **rest: Any
) -> Any:
    """Keras's own, with the scores hidden beforehand."""
    if scores_mask is not None:
        kept = scores_mask if len(scores_mask.shape) > 2 else scores_mask[:, None, :]
        scores = hidden(scores, kept)
    return plain(scores, value, scores_mask=None, **rest)


def _is_keras(layer: Any, method: str) -> bool:
    own = next((c for c in type(layer).__mro__ if method in vars(c)), object)
    return own.__module__.startswith("keras.")
