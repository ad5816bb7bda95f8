"""Compute a loss of the whole batch.

Keras reduces a loss to a weighted sum over the examples, divided by their number or that of the
unmasked ones. Replicas sum both. A loss that is no such sum is computed on each replica from the
rows of all.

Importing this module imports TensorFlow and Keras.
"""

from __future__ import annotations

import threading
from collections import UserList
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras import ops

from tfopt.distribute.whole_batch import all_reduce_sum, current_shard, drop_padding, gather_rows
from tfopt.errors import UserError
from tfopt.keras_internals import mask_of, with_metadata

# Ratios of sums over a whole batch, or comparisons of its examples with each other.
_OF_WHOLE_BATCHES = ("dice", "tversky", "circle")
_REDUCTIONS = ("sum", "mean", "sum_over_batch_size")


def adds_up(loss: Any) -> bool:
    """Return whether a loss is a reduction, by Keras, of one value for each example.

    This is known of Keras's losses; a custom function or ``keras.losses.Loss`` declares it by an
    attribute: ``focal.adds_up = True``.

    >>> adds_up(keras.losses.MeanSquaredError()), adds_up(keras.losses.Dice())
    (True, False)
    """
    kind = type(loss)
    if not isinstance(loss, keras.losses.Loss) or kind.__call__ is not keras.losses.Loss.__call__:
        return False
    if loss.reduction not in _REDUCTIONS:
        return False
    function = getattr(loss, "fn", None) or kind
    for owner in (loss, function):
        if hasattr(owner, "adds_up"):
            return bool(owner.adds_up)
    modules = [getattr(part, "__module__", "") for part in (kind.call, function)]
    name = getattr(function, "__name__", "").lower()
    return name not in _OF_WHOLE_BATCHES and all(
        module.startswith("keras.src.losses") for module in modules
    )


def terms(loss: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> tuple[Any, Any]:
    """Return the numerator of a loss, and the divisor of a mean, else None."""
    numerator = _Sum(loss.dtype, loss.call)(y_true, y_pred, sample_weight)
    if loss.reduction == "sum":
        return numerator, None

    def ones(y_true: Any, y_pred: Any) -> Any:
        values = loss.call(y_true, y_pred)
        return with_metadata(ops.ones_like(values), mask_of(values))

    return numerator, _Sum(loss.dtype, ones)(y_true, y_pred)


class _Sum(keras.losses.Loss):  # type: ignore[misc]
    """The weighted sum of a function's unmasked values."""

    def __init__(self, dtype: str, values: Callable[[Any, Any], Any]) -> None:
        super().__init__(reduction="sum", dtype=dtype)
        self._values = values

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return self._values(y_true, y_pred)


class WholeLoss:
    """A loss of ``compile``, computed of the whole batch."""

    def __init__(self, loss: Any) -> None:
        self.loss = loss
        self.name = getattr(loss, "name", None)

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        loss, shard = self.loss, current_shard()
        if shard is None or not isinstance(loss, keras.losses.Loss):
            return loss(y_true, y_pred, sample_weight)
        if shard.loss != "sum":
            return loss(y_true, y_pred, sample_weight)
        if not adds_up(loss):
            return loss(*gather_rows(drop_padding((y_true, y_pred, sample_weight))))
        numerator, divisor = terms(loss, y_true, y_pred, sample_weight)
        numerator = shard.weigh(numerator, "sum")
        if divisor is None:
            return all_reduce_sum(numerator)
        numbers = tf.stack([numerator, shard.weigh(divisor, "sum")])
        return tf.math.divide_no_nan(*tf.unstack(all_reduce_sum(numbers), num=2))


def undeclared(who: str) -> UserError:
    """Return the error for a custom loss whose reduction is not declared."""
    return UserError(
        f"{who}, and its reduction over the replicas is not declared.",
        expected="own_losses=, the reduction over the examples of a batch",
        fix='distribute(own_losses="mean") where a batch twice as large gives the same number '
        '(keras.ops.mean), or own_losses="sum" where it gives twice as much',
    )


class LossesOfReplica(threading.local, UserList[Any]):
    """A layer's list of losses, one for each replica's thread."""

    def __init__(self) -> None:
        super().__init__()
        self.data: list[Any] = []

    def __getitem__(self, at: Any) -> Any:
        return self.data[at]
