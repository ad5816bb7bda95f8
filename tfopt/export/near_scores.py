"""A softmax and a maximum that hide scores near the others, while a model is traced for integers.

Models hide a score by an enormous negative number; of 256 values between that and the scores none
is left for the scores.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tfopt.compress.integers.attention import ENORMOUS, hidden

Form = Callable[..., Any]
_SAME_VALUES = frozenset({"Identity", "StopGradient"})
# Which of an operation's inputs is the number that it fills a shape with.
_FILLED_WITH = {"Fill": 1, "BroadcastTo": 0}


def softmax_of_near_scores(plain: Form) -> Form:
    """Return a softmax that looks at what comes in.

    That is a choice between scores and an enormous number, or a sum with a mask of such numbers
    and zeros. A row that is hidden as a whole has equal shares.
    """

    def softmax(logits: Any, axis: Any = None, name: str | None = None) -> Any:
        found = _scores(logits)
        over = -1 if axis is None else axis
        return plain(logits if found is None else hidden(*found, over), axis, name)

    return softmax


def maximum_of_near_scores(plain: Form) -> Form:
    """Return a maximum that hides scores so; of a row that is hidden as a whole, its lowest."""
    import tensorflow as tf

    def reduce_max(
        input_tensor: Any, axis: Any = None, keepdims: bool = False, name: str | None = None
    ) -> Any:
        found = _scores(input_tensor)
        # Where the mask widens the scores, an axis of the sum is not one of theirs.
        if found is not None and found[0].shape.rank == input_tensor.shape.rank:
            scores, kept = found
            input_tensor = tf.where(kept, scores, tf.reduce_min(scores, axis, keepdims=True))
        return plain(input_tensor, axis, keepdims, name)

    return reduce_max


def _scores(logits: Any) -> tuple[Any, Any] | None:
    """Return the scores, and which of them are kept; None where nothing hides any."""
    import tensorflow as tf

    operation = _origin(logits)
    if operation is None:
        return None
    if operation.type in ("Select", "SelectV2"):
        kept, scores, other = operation.inputs
        if _is_far_below(other):
            return scores, kept
        return (other, tf.logical_not(kept)) if _is_far_below(scores) else None
    if operation.type not in ("Add", "AddV2", "Sub"):
        return None
    one, other = operation.inputs
    sides = [(one, other, -1)] if operation.type == "Sub" else [(one, other, 1), (other, one, 1)]
    for scores, mask, sign in sides:
        kept = _kept(mask, sign)
        if kept is not None:
            return scores, kept
    return None


def _kept(mask: Any, sign: int) -> Any:
    """Return where a mask that is added hides nothing; None where it is no mask."""
    import tensorflow as tf

    known = tf.get_static_value(mask)
    if known is not None:
        low = sign * known <= -ENORMOUS
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


def _is_far_below(values: Any) -> bool:
    """Return whether all values are enormous negative numbers, or others less such a number."""
    operation = _origin(values)
    if operation is not None and operation.type == "Sub":
        taken = _everywhere(operation.inputs[1])
        return taken is not None and _is_low(-taken)
    return _is_low(_everywhere(values))


def _is_low(value: Any) -> bool:
    return value is not None and bool(np.all(np.asarray(value) <= -ENORMOUS))


def _everywhere(values: Any) -> Any:
    """Return the number that all values are; None where nobody knows."""
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
