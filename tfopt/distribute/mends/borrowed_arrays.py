"""Under several replicas TensorFlow writes into the NumPy arrays that a generator yields.

What is wrong: TensorFlow 2.21 does not copy an array that Python code hands to a dataset, where it
is aligned to 64 bytes, and promises not to write there. Where a batch is split over replicas the
parts have lost that promise: an operation of the step may use such a part's memory for its result.
A generator, or a PyDataset, that yields slices of an array then finds other numbers in that array
in the next epoch, silently.

The mend: batches that may come from Python are copied before they are split. Guarantees: only what
this strategy distributes; a dataset without Python code in it is left as it is.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from tfopt.compress.hooks import replaced
from tfopt.distribute.shards import reads_python


def mended(strategy: Any) -> AbstractContextManager[None]:
    """Copy such batches inside, where this strategy distributes them."""
    plain = strategy.experimental_distribute_dataset

    def experimental_distribute_dataset(dataset: Any, options: Any = None) -> Any:
        return plain(copied(dataset) if reads_python(dataset) else dataset, options)

    return replaced(strategy, experimental_distribute_dataset=experimental_distribute_dataset)


def copied(dataset: Any) -> Any:
    """Return the same elements, each in memory of TensorFlow's own."""
    import tensorflow as tf

    def copy(value: Any) -> Any:
        if value is None or value.dtype in (tf.variant, tf.resource):
            return value
        return tf.raw_ops.DeepCopy(x=value)

    def on_element(*parts: Any) -> Any:
        element = parts if isinstance(dataset.element_spec, tuple) else parts[0]
        return tf.nest.map_structure(copy, element, expand_composites=True)

    return dataset.map(tf.autograph.experimental.do_not_convert(on_element))
