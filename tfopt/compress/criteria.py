"""Score weights for pruning: the higher a score, the more a weight is worth keeping."""

from __future__ import annotations

from typing import Any, Literal, get_args

from tfopt.errors import UserError

Criterion = Literal["magnitude", "lamp"]


def scores_of(weights: Any, criterion: Criterion = "magnitude") -> Any:
    """Return a score for each weight: its magnitude, or its share by LAMP.

    Weights that are NaN have the highest score, since a mask must not hide them.
    """
    import tensorflow as tf

    scores = _lamp(weights) if criterion == "lamp" else tf.abs(weights)
    lost = tf.logical_or(tf.math.is_nan(scores), tf.math.is_nan(weights))
    return tf.where(lost, scores.dtype.max, scores)


def require_criterion(criterion: object) -> None:
    """Refuse anything but the name of a criterion."""
    if criterion not in get_args(Criterion):
        raise UserError(
            "This is no criterion for pruning.",
            expected='"magnitude" or "lamp"',
            received=repr(criterion),
        )


def _lamp(weights: Any) -> Any:
    """Return each weight's square as a share of its kernel's that are not smaller.

    Inside a kernel the order is that of magnitude. From kernel to kernel it does not depend on
    their scale, which after a normalization means nothing (Lee et al., 2021).
    """
    import tensorflow as tf

    squares = tf.reshape(tf.square(tf.cast(weights, tf.float32)), [-1])
    order = tf.argsort(squares, direction="DESCENDING", stable=True)
    descending = tf.gather(squares, order)
    shares = tf.math.divide_no_nan(descending, tf.cumsum(descending))
    size = tf.shape(squares)
    return tf.reshape(tf.scatter_nd(order[:, None], shares, size), tf.shape(weights))
