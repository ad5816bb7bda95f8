"""Quotients as LiteRT divides in integers: a number by the values, and the result multiplied.

Guarantees: the same results in float, but for rounding. LiteRT's DIV gives the lowest value of all
where what it divides is one step below zero; of a number it is right. And while the converter looks
for ranges it runs an older kernel, which refuses integers of zero also where they stand for another
value: so its result is none that training gave a range. TensorFlow is imported when it is first
needed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tfopt.compression.graph import kinds


def quotient_form(part: Any) -> Callable[..., Any] | None:
    """The ``call`` of a division; None for other operations."""
    return partial(_quotient, part.call) if kinds(part) & {"Divide", "TrueDivide"} else None


def _quotient(plain: Callable[..., Any], x1: Any, x2: Any) -> Any:
    if _is_float(x1) and _is_float(x2):
        return x1 * (1.0 / x2)
    if isinstance(x1, int | float) and _is_float(x2):
        # A product with one would be dropped.
        return (x1 / 2 / x2) * 2.0
    return plain(x1, x2)


def _is_float(values: Any) -> bool:
    import tensorflow as tf

    return bool(tf.is_tensor(values) and values.dtype == tf.float32)
