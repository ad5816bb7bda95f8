"""Compute attention and normalizations in forms that lose little in int8.

A score masked by a huge negative number leaves none of the 256 values for the other scores. Here
masked scores are a little below the lowest score of their row, which changes probabilities by a
quarter of a percent at most.

Keras normalizes by ``x * inv - mean * inv``, whose terms are much larger than their difference;
here the mean is subtracted first. In float the results differ only for rows with a variance below
1/512 of the mean of their example.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tfopt.compress.model_graph import computes_as_keras, kinds
from tfopt.keras_internals import ATTENTION, masked_rows_are_zero, scale_of

# All masked keys of a row have at most e ** -6 of the probability of the largest one.
_BELOW = 6.0
# The assumed number of keys if it is unknown
_LONG = 1024
_MANY_HEADS = frozenset({"MultiHeadAttention", "GroupedQueryAttention"})
_NORMALIZATIONS = frozenset({"LayerNormalization", "RMSNormalization"})
# The lowest variance relative to the mean of the example: no inverse is above 23 times the usual.
_LOWEST = 1 / 512


def is_attention_of_many_heads(layer: Any) -> bool:
    """Return whether a layer is multi-head attention by Keras's own method, along one axis."""
    axes = tuple(getattr(layer, "attention_axes", None) or (1,))
    along_one_axis = bool(kinds(layer) & _MANY_HEADS) and axes == (1,)
    return along_one_axis and computes_as_keras(layer, ATTENTION)


def lowered_scores(scores: Any, kept: Any, axis: int = -1) -> Any:
    """Lower the scores that are not kept below all others of their row."""
    import tensorflow as tf

    depth = _BELOW + math.log(scores.shape[axis] or _LONG)
    lowest = tf.reduce_min(scores, axis, keepdims=True)
    return tf.where(kept, scores, lowest - depth)


def attention(
    layer: Any,
    plain: Callable[..., tuple[Any, Any]],
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any = None,
    *rest: Any,
    **named: Any,
) -> tuple[Any, Any]:
    """Return the context of the heads and the probabilities; without a mask as ``plain`` does.

    ``rest`` are ``training`` and, of MultiHeadAttention, ``return_attention_scores``.
    """
    from keras import ops

    is_causal = named.get("use_causal_mask")
    if attention_mask is None and not is_causal:
        return plain(query, key, value, attention_mask, *rest, **named)
    mask = attention_mask
    if is_causal:
        places = (ops.arange(ops.shape(tensor)[1]) for tensor in (query, value))
        causal = ops.greater_equal(*ops.meshgrid(*places, indexing="ij"))
        mask = causal if mask is None else ops.logical_and(ops.cast(mask, "bool"), causal)
    while len(mask.shape) < len(query.shape):
        mask = ops.expand_dims(mask, -3)
    kept = ops.cast(mask, "bool")
    query = ops.multiply(query, ops.cast(scale_of(layer), query.dtype))
    shares = ops.softmax(lowered_scores(ops.einsum("bsnh,btnh->bnts", key, query), kept))
    # For a fully masked row Keras computes the mean, or on its path with dropout by its softmax.
    with_softmax = layer.dropout > 0 or any(rest[1:]) or named.get("return_attention_scores")
    if with_softmax and masked_rows_are_zero():
        shares = ops.where(kept, shares, 0.0)
    return ops.einsum("bnts,bsnh->btnh", shares, value), shares


def is_normalization(layer: Any) -> bool:
    """Return whether :func:`normalized` can compute a layer."""
    return not getattr(layer, "rms_scaling", False) and bool(kinds(layer) & _NORMALIZATIONS)


def normalized(layer: Any, inputs: Any) -> Any:
    """Return the result of a normalization.

    A mean square is clipped relative to its example's mean: the inverse root of a row of zeros
    (padding, a zero class token) is a thousand times that of others, for which none of the 256
    values would be left.
    """
    import tensorflow as tf

    given = [layer.axis] if isinstance(layer.axis, int) else layer.axis
    axes = sorted(axis % len(inputs.shape) for axis in given)
    if "RMSNormalization" in kinds(layer):
        gamma, beta = layer.scale, None
    else:
        gamma, beta = layer.gamma, layer.beta
        inputs = inputs - tf.reduce_mean(inputs, axes, keepdims=True)
    square = tf.reduce_mean(inputs * inputs, axes, keepdims=True)
    beside = [axis for axis in range(1, len(square.shape)) if square.shape[axis] != 1]
    if beside:
        usual = tf.reduce_mean(square, beside, keepdims=True)
        square = tf.maximum(square, usual * _LOWEST)
    values = inputs * tf.math.rsqrt(square + layer.epsilon)
    shape = [size if axis in axes else 1 for axis, size in enumerate(inputs.shape)]
    if gamma is not None:
        values = values * tf.reshape(tf.convert_to_tensor(gamma), shape)
    return values if beta is None else values + tf.reshape(tf.convert_to_tensor(beta), shape)
