"""Split a loss into a sum and a divisor, which add up over the parts of a batch.

Keras reduces a loss to one number: a weighted sum over the examples, divided by how many there are,
or by those that a mask leaves. Replicas add up both.

Importing this module imports TensorFlow and Keras.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from tfopt.distribute.whole_batch import mask_of

# Ratios of sums over a whole batch, or comparisons of its examples with each other.
_OF_WHOLE_BATCHES = ("dice", "tversky", "circle")
_REDUCTIONS = ("sum", "mean", "sum_over_batch_size")


def adds_up(loss: Any) -> bool:
    """Return whether a loss has a value for each example by itself, and reduces them as Keras does.

    Of Keras's losses that is known; a function or a ``keras.losses.Loss`` of your own says so by an
    attribute: ``focal.adds_up = True``.

    >>> adds_up(keras.losses.MeanSquaredError()), adds_up(keras.losses.Dice())
    (True, False)
    """
    kind = type(loss)
    if not isinstance(loss, keras.losses.Loss) or kind.__call__ is not keras.losses.Loss.__call__:
        return False
    if loss.reduction not in _REDUCTIONS:
        return False
    own = getattr(loss, "fn", None) or kind
    for each in (loss, own):
        if hasattr(each, "adds_up"):
            return bool(each.adds_up)
    of_keras = [getattr(each, "__module__", "") for each in (kind.call, own)]
    name = getattr(own, "__name__", "").lower()
    return name not in _OF_WHOLE_BATCHES and all(
        module.startswith("keras.src.losses") for module in of_keras
    )


def terms(loss: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> tuple[Any, Any]:
    """Return a loss's numerator, and its divisor where it is a mean; both are added up."""
    numerator = _Sum(loss.dtype, loss.call)(y_true, y_pred, sample_weight)
    if loss.reduction == "sum":
        return numerator, None

    def ones(y_true: Any, y_pred: Any) -> Any:
        values = loss.call(y_true, y_pred)
        found, mask = ops.ones_like(values), mask_of(values)
        if mask is not None:
            found._keras_mask = mask
        return found

    return numerator, _Sum(loss.dtype, ones)(y_true, y_pred)


class _Sum(keras.losses.Loss):  # type: ignore[misc]
    """The sum of a function's values, weighted and without those that are masked."""

    def __init__(self, dtype: str, values: Callable[[Any, Any], Any]) -> None:
        super().__init__(reduction="sum", dtype=dtype)
        self._values = values

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return self._values(y_true, y_pred)
