"""Compute a loss, and what layers add to it, of the whole batch.

Keras reduces a loss to one number: a weighted sum over the examples, divided by how many there are,
or by those that a mask leaves. Replicas add up both. Where a loss is no such sum, each replica
computes it of the rows of all.

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

from tfopt.distribute.whole_batch import all_reduce_sum, drop_padding, gather_rows, shard_here
from tfopt.errors import UserError
from tfopt.keras_internals import mask_of, with_metadata

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
        return with_metadata(ops.ones_like(values), mask_of(values))

    return numerator, _Sum(loss.dtype, ones)(y_true, y_pred)


class _Sum(keras.losses.Loss):  # type: ignore[misc]
    """The sum of a function's values, weighted and without those that are masked."""

    def __init__(self, dtype: str, values: Callable[[Any, Any], Any]) -> None:
        super().__init__(reduction="sum", dtype=dtype)
        self._values = values

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return self._values(y_true, y_pred)


class WholeLoss:
    """A loss of Keras's ``compile``, computed of the whole batch."""

    def __init__(self, loss: Any) -> None:
        self.loss = loss
        self.name = getattr(loss, "name", None)

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        loss, shard = self.loss, shard_here()
        if shard is None or not isinstance(loss, keras.losses.Loss):
            return loss(y_true, y_pred, sample_weight)
        if not shard.is_global_loss or shard.rows_are_whole:
            return loss(y_true, y_pred, sample_weight)  # in a step, or a loss, of the user's own
        if not adds_up(loss):
            return loss(*gather_rows(drop_padding((y_true, y_pred, sample_weight))))
        numerator, divisor = terms(loss, y_true, y_pred, sample_weight)
        numerator = shard.weigh(numerator, "sum")
        if divisor is None:
            return all_reduce_sum(numerator)
        numbers = tf.stack([numerator, shard.weigh(divisor, "sum")])
        return tf.math.divide_no_nan(*tf.unstack(all_reduce_sum(numbers), num=2))


def undeclared(who: str) -> UserError:
    """Return the error for a loss of the user's own of which nobody said how it adds up."""
    return UserError(
        f"{who}, and tfopt is not told how its numbers add up over the replicas.",
        expected="a mean over the examples of a batch, or a sum over them, declared",
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
