"""Attention as an int8 file computes it, with masks that leave the scores their steps.

Keras and users hide a score by an enormous negative number; of 256 values between that and the
scores none is left for the scores. Here what is hidden is a little below the lowest score of its
row, which changes shares by a quarter of a percent at most.
"""

from __future__ import annotations

import math
from typing import Any

from tfopt.compress.integers.fake_quant import Rounded
from tfopt.compress.model_graph import Place, kinds
from tfopt.keras_internals import ATTENTION, layers_inside, scale_of

PLACES = ("query", "scores", "hidden", "context")
"""Where LiteRT rounds inside attention of many heads, the softmax apart, which is a layer."""

# What is hidden in a row has together at most e ** -6 of the share of the largest.
_BELOW = 6.0
# Where nobody knows how many keys there are.
_LONG = 1024
_MANY_HEADS = frozenset({"MultiHeadAttention", "GroupedQueryAttention"})


def is_attention_of_many_heads(layer: Any) -> bool:
    """Return whether its heads are computed by Keras's own method, along one axis."""
    axes = tuple(getattr(layer, "attention_axes", None) or (1,))
    if not kinds(layer) & _MANY_HEADS or axes != (1,):
        return False
    own = next((c for c in type(layer).__mro__ if ATTENTION in vars(c)), object)
    return own.__module__.startswith("keras.")


def hidden(scores: Any, kept: Any, axis: int = -1) -> Any:
    """Put the scores that are not kept so far below those of their row that they have no share."""
    import tensorflow as tf

    depth = _BELOW + math.log(scores.shape[axis] or _LONG)
    lowest = tf.reduce_min(scores, axis, keepdims=True)
    return tf.where(kept, scores, lowest - depth)


def heads(
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
        places = (ops.arange(ops.shape(each)[1]) for each in (query, value))
        causal = ops.greater_equal(*ops.meshgrid(*places, indexing="ij"))
        mask = causal if mask is None else ops.logical_and(ops.cast(mask, "bool"), causal)
    inner = {type(each).__name__: each for each in layers_inside(layer, recursive=False)}
    scale = ops.cast(scale_of(layer), query.dtype)
    query = rounded(ops.multiply(query, scale), "query")
    more = "xyz"[: len(query.shape) - 4]  # axes that are not attended over
    scores = rounded(ops.einsum(f"bs{more}nh,bt{more}nh->b{more}nts", key, query), "scores")
    if mask is None:
        shares = inner["Softmax"](scores)
    else:
        while len(mask.shape) < len(scores.shape):
            mask = ops.expand_dims(mask, -3)
        kept = ops.cast(mask, "bool")
        shares = inner["Softmax"](rounded(hidden(scores, kept), "hidden"))
        # Of a row that is hidden as a whole Keras takes the mean, or nothing, as it has two ways.
        if layer.dropout > 0 or return_attention_scores:
            shares = ops.where(kept, shares, 0.0)
    used = inner["Dropout"](shares, training=training) if layer.dropout > 0 else shares
    context = ops.einsum(f"b{more}nts,bs{more}nh->bt{more}nh", used, value)
    return rounded(context, "context"), shares


def hides_scores(part: Any, place: Place) -> bool:
    """Return whether a part may only hide scores from a softmax: its range would hold none."""
    if place.is_output or not kinds(part) & {"Where", "Add", "Subtract"}:
        return False
    functions = (getattr(after, "activation", None) for after in place.after)
    names = (getattr(function, "__name__", "") for function in functions)
    return bool(place.after) and all(
        "Softmax" in kinds(after) or name == "softmax"
        for after, name in zip(place.after, names, strict=True)
    )
