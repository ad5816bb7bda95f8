"""Check each worker's share of the examples; the user's function makes it on the worker.

Each worker goes round its own share for ever; an epoch is as many steps as all shares have batches,
taken by whoever is ready. So an example is seen about once an epoch, not exactly once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from tfopt.distribute.shards import reads_python
from tfopt.errors import UserError


@dataclass(frozen=True)
class Share:
    """Which part of the examples a worker is to have."""

    index: int
    """From 0; ``files[share.index :: share.count]`` is a usual way to take one's part."""
    count: int
    """How many workers the cluster has."""


def shares_of(data: Callable[[Share], Any], count: int) -> tuple[Any, Any, int]:
    """Return a function that makes a worker's dataset on it, its spec, and an epoch's steps."""
    import tensorflow as tf

    shares = [data(Share(index, count)) for index in range(count)]
    steps = sum(_batches(tf, share, index) for index, share in enumerate(shares))
    first = shares[0].element_spec
    for index, share in enumerate(shares):
        if share.element_spec != first:
            raise UserError(
                f"The share of worker {index} has other examples than that of worker 0.",
                expected=str(first),
                received=str(share.element_spec),
                fix="give every worker the same shapes and types; batch(…, drop_remainder=…) alike",
            )

    def variant(share: Share) -> Any:
        return tf.data.experimental.to_variant(data(share).repeat())

    def of_this_worker() -> Any:
        index = tf.distribute.coordinator.experimental_get_current_worker_index()
        branches = {number: partial(variant, Share(number, count)) for number in range(count)}
        mine = tf.switch_case(tf.cast(index, tf.int32), branches)
        return tf.data.experimental.from_variant(mine, structure=first)

    return tf.function(of_this_worker).get_concrete_function(), first, steps


def _batches(tf: Any, share: Any, index: int) -> int:
    if not isinstance(share, tf.data.Dataset):
        raise UserError(
            f"data() gave no tf.data.Dataset for worker {index}.",
            expected="a function of the worker's Share that returns a batched tf.data.Dataset",
            received=type(share).__name__,
        )
    if reads_python(share):
        raise UserError(
            "The dataset calls Python, and a worker has only its graph.",
            expected="a tf.data.Dataset of TensorFlow's own operations",
            received="from_generator, py_function or numpy_function",
            fix="write the examples to TFRecord files and read those, or make them of arrays",
        )
    batches = int(share.cardinality())
    if batches < 1:
        number = {0: "0 batches", tf.data.INFINITE_CARDINALITY: "an endless dataset"}
        raise UserError(
            f"The share of worker {index} is empty, or does not say how many batches it has.",
            expected="one batch or more: an epoch is as many steps as all shares have",
            received=number.get(batches, "a dataset of unknown length"),
            fix="use fewer workers, dataset.take(n), or "
            ".apply(tf.data.experimental.assert_cardinality(n))",
        )
    return batches
