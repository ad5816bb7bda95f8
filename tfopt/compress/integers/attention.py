"""Attention as LiteRT computes it in integers, with masks that leave the scores their steps.

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

from tfopt.compress.integers.fake_quant import Rounded, fake_quantized_in_file
from tfopt.compress.integers.tracing import Form
from tfopt.compress.model_graph import Place, is_layer, kinds

PLACES = ("query", "scores", "hidden", "context")
"""Where LiteRT rounds inside attention of many heads, the softmax apart, which is a layer."""

# What is hidden in a row has together at most e ** -6 of the share of the largest.
_BELOW = 6.0
# Where nobody knows how many keys there are.
_LONG = 1024
_MANY_HEADS = frozenset({"MultiHeadAttention", "GroupedQueryAttention"})
_ONE_HEAD = frozenset({"Attention", "AdditiveAttention"})
# Of a score that is so much lower than another no float32 has a share.
_ENORMOUS = 1e3
_FOLLOWED_BY = frozenset({"Softmax", "Max", "Amax", *(f"GlobalMaxPooling{n}D" for n in (1, 2, 3))})
_SAME_VALUES = frozenset(
    {"Identity", "FakeQuantWithMinMaxArgs", "FakeQuantWithMinMaxVars", "StopGradient"}
)
# Which of an operation's inputs is the number that it fills a shape with.
_FILLED_WITH = {"Fill": 1, "BroadcastTo": 0}


def is_attention_of_many_heads(layer: Any) -> bool:
    """Return whether its heads are computed by Keras's own method, along one axis."""
    if not kinds(layer) & _MANY_HEADS or len(getattr(layer, "_attention_axes", None) or [1]) > 1:
        return False
    return _is_keras(layer, "_compute_attention")


def attention_methods(layer: Any, rounded: Rounded) -> dict[str, Callable[..., Any]]:
    """Return the methods that stand for Keras's own, by name; none for other layers."""
    if not is_layer(layer):
        return {}
    if is_attention_of_many_heads(layer):
        return {"_compute_attention": partial(_heads, layer, rounded)}
    if kinds(layer) & _ONE_HEAD and _is_keras(layer, "_apply_scores"):
        return {"_apply_scores": partial(_applied, layer._apply_scores)}
    return {}


def hidden(scores: Any, kept: Any) -> Any:
    """Put the scores that are not kept below all others of their row."""
    return _hidden_at(_depth(scores, -1), scores, kept, -1)


def _hidden_at(depth: float, scores: Any, kept: Any, axis: Any) -> Any:
    import tensorflow as tf

    lowest = tf.reduce_min(scores, axis, keepdims=True)
    return tf.where(kept, scores, lowest - depth)


def _depth(scores: Any, axis: int) -> float:
    """Return how far below the lowest score of its row what is hidden is put."""
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


def _applied(plain: Form, scores: Any, value: Any, scores_mask: Any = None, **rest: Any) -> Any:
    """Call Keras's own method with the scores hidden beforehand."""
    if scores_mask is not None:
        kept = scores_mask if len(scores_mask.shape) > 2 else scores_mask[:, None, :]
        scores = hidden(scores, kept)
    return plain(scores, value, scores_mask=None, **rest)


def _is_keras(layer: Any, method: str) -> bool:
    own = next((c for c in type(layer).__mro__ if method in vars(c)), object)
    return own.__module__.startswith("keras.")


def softmax_of_near_scores(plain: Form) -> Form:
    """Return a softmax that hides scores near the others.

    It looks at what comes in: a choice between scores and an enormous number, or a sum with a
    mask of such numbers and zeros. A row that is hidden as a whole has equal shares.
    """

    def softmax(logits: Any, axis: Any = None, name: str | None = None) -> Any:
        found = _scores(logits)
        if found is not None:
            over = -1 if axis is None else axis
            logits = _rounded_as_scores(_depth(found[0], over), *found, over)
        return plain(logits, axis, name)

    return softmax


def maximum_of_near_scores(plain: Form) -> Form:
    """Return a maximum that hides scores so; of a row that is hidden as a whole, its lowest."""

    def reduce_max(
        input_tensor: Any, axis: Any = None, keepdims: bool = False, name: str | None = None
    ) -> Any:
        found = _scores(input_tensor)
        # Where the mask widens the scores, an axis of the sum is not one of theirs.
        if found is not None and found[0].shape.rank == input_tensor.shape.rank:
            input_tensor = _rounded_as_scores(0.0, *found, axis)
        return plain(input_tensor, axis, keepdims, name)

    return reduce_max


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
        return bool(np.abs(np.asarray(value, "float64")).max(initial=0) >= _ENORMOUS)
    except (TypeError, ValueError):
        return False


def _scores(logits: Any) -> tuple[Any, Any] | None:
    """Return the scores, and which of them are kept; None where nothing hides any."""
    import tensorflow as tf

    operation = _origin(logits)
    if operation is None:
        return None
    if operation.type in ("Select", "SelectV2"):
        kept, scores, other = operation.inputs
        if _is_low(_everywhere(other)):
            return scores, kept
        return (other, tf.logical_not(kept)) if _is_low(_everywhere(scores)) else None
    if operation.type not in ("Add", "AddV2", "Sub"):
        return None
    one, other = operation.inputs
    sides = [(one, other, -1)] if operation.type == "Sub" else [(one, other, 1), (other, one, 1)]
    for scores, mask, sign in sides:
        kept = _kept(mask, sign)
        if kept is not None:
            return scores, kept
    return None


def _rounded_as_scores(depth: float, scores: Any, kept: Any, axis: Any) -> Any:
    """Hide scores, rounded where they are: LiteRT's choice has one scale, and would take theirs."""
    found = _hidden_at(depth, scores, kept, axis)
    if getattr(scores.op, "type", "") != "FakeQuantWithMinMaxArgs":
        return found
    low, high = scores.op.get_attr("min"), scores.op.get_attr("max")
    return fake_quantized_in_file(found, low - depth, high)


def _kept(mask: Any, sign: int) -> Any:
    """Return where a mask that is added hides nothing; None where it is no mask."""
    import tensorflow as tf

    known = tf.get_static_value(mask)
    if known is not None:
        low = sign * known <= -_ENORMOUS
        # Anything between would have to be added as it is.
        return tf.constant(~low) if low.any() and not known[~low].any() else None
    product = _origin(mask)
    if product is None or product.type != "Mul":
        return None
    for factor, chosen in (product.inputs, reversed(product.inputs)):
        value = tf.get_static_value(factor)
        if value is not None and _is_low(sign * value):
            return chosen < 0.5
    return None


def _is_low(value: Any) -> bool:
    return value is not None and bool(np.all(np.asarray(value) <= -_ENORMOUS))


def _everywhere(values: Any) -> Any:
    """Return the numbers that values are, whatever their shape; None where nobody knows."""
    import tensorflow as tf

    known = tf.get_static_value(values)
    operation = None if known is not None else _origin(values)
    if operation is None:
        return known
    if operation.type == "OnesLike":
        return np.float32(1)
    if operation.type in _FILLED_WITH:
        return _everywhere(operation.inputs[_FILLED_WITH[operation.type]])
    if operation.type != "Mul":
        return None
    one, other = map(_everywhere, operation.inputs)
    several = np.size(one) > 1 and np.size(other) > 1
    return None if one is None or other is None or several else one * other


def _origin(values: Any) -> Any:
    """Return the operation that values come from, past those that leave them as they are."""
    operation = getattr(values, "op", None)
    while operation is not None and operation.type in _SAME_VALUES:
        operation = operation.inputs[0].op
    return operation
