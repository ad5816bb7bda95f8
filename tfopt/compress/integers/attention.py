"""Attention as an int8 file computes it, with masks that keep the range of the scores.

A score masked by a huge negative number leaves none of the 256 values for the other scores. Here
masked scores are a little below the lowest score of their row, which changes probabilities by a
quarter of a percent at most.
"""

from __future__ import annotations

import math
from typing import Any

from tfopt.compress.integers.fake_quant import Rounded
from tfopt.compress.model_graph import Neighbours, kinds
from tfopt.keras_internals import ATTENTION, layers_inside, scale_of

PLACES = ("query", "scores", "hidden", "context")
"""The values that LiteRT rounds inside multi-head attention, except the softmax, a layer."""

# All masked keys of a row have at most e ** -6 of the probability of the largest one.
_BELOW = 6.0
# The assumed number of keys if it is unknown
_LONG = 1024
_MANY_HEADS = frozenset({"MultiHeadAttention", "GroupedQueryAttention"})


def is_attention_of_many_heads(layer: Any) -> bool:
    """Return whether a layer is multi-head attention by Keras's own method, along one axis."""
    axes = tuple(getattr(layer, "attention_axes", None) or (1,))
    if not kinds(layer) & _MANY_HEADS or axes != (1,):
        return False
    own = next((c for c in type(layer).__mro__ if ATTENTION in vars(c)), object)
    return own.__module__.startswith("keras.")


def lowered_scores(scores: Any, kept: Any, axis: int = -1) -> Any:
    """Lower the scores that are not kept below all others of their row."""
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
    """Return the context of the heads, and the attention probabilities."""
    from keras import ops

    mask = attention_mask
    if use_causal_mask:
        places = (ops.arange(ops.shape(tensor)[1]) for tensor in (query, value))
        causal = ops.greater_equal(*ops.meshgrid(*places, indexing="ij"))
        mask = causal if mask is None else ops.logical_and(ops.cast(mask, "bool"), causal)
    inner = {type(child).__name__: child for child in layers_inside(layer, recursive=False)}
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
        shares = inner["Softmax"](rounded(lowered_scores(scores, kept), "hidden"))
        # For a fully masked row Keras computes the mean, or zero on its path with dropout.
        if layer.dropout > 0 or return_attention_scores:
            shares = ops.where(kept, shares, 0.0)
    used = inner["Dropout"](shares, training=training) if layer.dropout > 0 else shares
    context = ops.einsum(f"b{more}nts,bs{more}nh->bt{more}nh", used, value)
    return rounded(context, "context"), shares


def masks_scores(part: Any, place: Neighbours) -> bool:
    """Return whether a part may mask scores before a softmax, and so should have no range."""
    if place.is_output or not kinds(part) & {"Where", "Add", "Subtract"}:
        return False
    functions = (getattr(after, "activation", None) for after in place.after)
    names = (getattr(function, "__name__", "") for function in functions)
    return bool(place.after) and all(
        "Softmax" in kinds(after) or name == "softmax"
        for after, name in zip(place.after, names, strict=True)
    )
