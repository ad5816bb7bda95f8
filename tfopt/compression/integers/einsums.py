"""Einsums with the free batch first, while a model is traced for its file.

Guarantees: the same results; TensorFlow is as it was when the context is left. Of an ``einsum``
whose second operand has the free batch (a graph's matrix by the features of its nodes) the
converter makes a shape that overflows; with the operands the other way round it is a product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tfopt.one_at_a_time import ONE_AT_A_TIME


@contextmanager
def einsums_by_batch() -> Iterator[None]:
    """Inside it TensorFlow takes what has the free batch first; in other threads too, equally."""
    import tensorflow as tf

    with ONE_AT_A_TIME:
        plain, of_linalg = tf.einsum, tf.linalg.einsum
        tf.einsum = tf.linalg.einsum = _batch_first(plain)
        try:
            yield
        finally:
            tf.einsum, tf.linalg.einsum = plain, of_linalg


def _batch_first(plain: Callable[..., Any]) -> Callable[..., Any]:
    def einsum(equation: str, *inputs: Any, **named: Any) -> Any:
        if len(inputs) == 2 and "->" in equation and _is_free(inputs[1]) and _is_known(inputs[0]):
            operands, result = equation.split("->")
            first, second = operands.split(",")
            return plain(f"{second},{first}->{result}", inputs[1], inputs[0], **named)
        return plain(equation, *inputs, **named)

    return einsum


def _is_free(values: Any) -> bool:
    import tensorflow as tf

    known = isinstance(values, tf.Tensor) and values.shape.rank
    return bool(known) and values.shape[0] is None


def _is_known(values: Any) -> bool:
    shape = getattr(values, "shape", None)
    return shape is not None and None not in tuple(shape)
