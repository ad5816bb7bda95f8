"""Mistakes in the data that only the training meets: beyond the first batch of a stream.

Guarantees: they end as a UserError that names them, not as a result or a TensorFlow trace.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tfopt.errors import UserError


@contextmanager
def late_mistakes_told() -> Iterator[None]:
    """A label out of range beyond the first batch of a stream is found by the loss itself."""
    import tensorflow as tf

    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        found = re.search(r"label value of (-?\d+) .*?range of \[(\d+), (\d+)\)", str(error))
        if found is None:
            raise
        label, first, end = map(int, found.groups())
        raise UserError(
            "The train data has a label out of range, beyond its first batch.",
            expected=f"whole numbers from {first} to {end - 1}",
            received=f"label {label}",
            fix="number the classes from 0, or give the model's last layer more units",
        ) from error


def require_finite(losses: Sequence[float]) -> None:
    """A loss that is NaN has made every weight NaN: nothing after it means anything."""
    bad = [epoch for epoch, loss in enumerate(losses, start=1) if not math.isfinite(loss)]
    if bad:
        raise UserError(
            f"The training's loss is {losses[bad[0] - 1]} in epoch {bad[0]}.",
            expected="a finite loss",
            received="NaN or infinite values in the examples, or a training that diverges",
            fix="look for NaN beyond the first batch of the data, or lower the learning rate",
        )
