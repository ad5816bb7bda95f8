"""Split a loss into a sum and a divisor, which add up over the parts of a batch.

Keras reduces a loss to one number: a weighted sum over the examples, divided by how many there are
(or by their weight, or by those that a mask leaves). Replicas add up both.

Importing this module imports TensorFlow and Keras.
"""

from __future__ import annotations

from typing import Any

from keras import ops, tree
from keras.src import backend
from keras.src.losses import loss as keras_loss

from tfopt.errors import UserError

# Ratios of sums over a whole batch, or comparisons of its examples with each other.
_OF_WHOLE_BATCHES = ("dice", "tversky", "circle")


def adds_up(loss: Any) -> bool:
    """Return whether a loss has a value for each example by itself, and reduces them as Keras does.

    Of Keras's losses that is known; a function or a ``keras.losses.Loss`` of your own says so by an
    attribute: ``focal.adds_up = True``.

    >>> adds_up(keras.losses.MeanSquaredError()), adds_up(keras.losses.Dice())
    (True, False)
    """
    kind = type(loss)
    if not isinstance(loss, keras_loss.Loss) or kind.__call__ is not keras_loss.Loss.__call__:
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
    """Return the numerator of a loss and its divisors: a list of numbers to add up, or None.

    The loss is ``loss_of(numerator, divisors)`` once both have been added up.
    """
    reduction = keras_loss.standardize_reduction(loss.reduction)
    if reduction in (None, "none"):
        raise UserError(
            f"The loss {loss.name!r} is not reduced to one number.",
            expected="a loss that is its values' mean, or their sum",
            received=f"reduction={loss.reduction!r}",
            fix="leave the reduction out",
        )
    in_mask = backend.get_keras_mask(y_pred)
    y_pred, y_true = (
        tree.map_structure(lambda v: ops.convert_to_tensor(v, dtype=loss.dtype), each)
        for each in (y_pred, y_true)
    )
    values = loss.call(y_true, y_pred)
    masks = [each for each in (in_mask, backend.get_keras_mask(values)) if each is not None]
    mask = masks[0] & masks[1] if len(masks) == 2 else next(iter(masks), None)
    values = ops.convert_to_tensor(values, dtype=loss.dtype)
    weight = keras_loss.apply_mask(sample_weight, mask, dtype=values.dtype, reduction="sum")
    if weight is not None:
        weight = ops.cast(ops.convert_to_tensor(weight), values.dtype)
        values, weight = keras_loss.squeeze_or_expand_to_same_rank(values, weight)
        values = values * weight
    numerator = ops.sum(values)
    if reduction == "sum":
        return numerator, None
    if reduction == "mean_with_sample_weight" and weight is not None:
        return numerator, [ops.sum(weight)]
    if mask is None or reduction == "mean_with_sample_weight":
        return numerator, [_size(values, values.dtype)]
    valid = ops.sum(ops.cast(mask, values.dtype))
    return numerator, [_size(values, values.dtype), valid, _size(mask, values.dtype)]


def loss_of(numerator: Any, divisors: Any) -> Any:
    """Return the loss of added up terms."""
    if divisors is None:
        return numerator
    divisor, *shares = divisors
    if shares:  # how much a mask leaves
        divisor = divisor * ops.divide_no_nan(*shares)
    return ops.divide_no_nan(numerator, divisor)


def _size(values: Any, dtype: Any) -> Any:
    return ops.cast(ops.prod(ops.convert_to_tensor(ops.shape(values), dtype="int32")), dtype)
