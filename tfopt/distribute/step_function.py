"""The functions that ``fit`` and ``evaluate`` call with an iterator, for a step on all replicas.

Importing this module imports TensorFlow and Keras.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from keras import tree

from tfopt.distribute.step import Step
from tfopt.distribute.whole_batch import replicas_of


def step_function(step: Step, name: str) -> Callable[[Any], Any]:
    """Return the function that takes ``steps_per_execution`` steps of ``train_step`` or so.

    Keras on TensorFlow has one that exchanges the logs of workers wrongly, hands XLA the exchanges
    between devices, and fails for several steps a call (keras#19246). Here several steps are
    several calls, and nobody waits for the numbers of those before the last.
    """
    model = step.model
    strategy = model.distribute_strategy

    def on_batch(data: Any, is_even: bool = True) -> Any:
        data = tree.map_structure(
            lambda v: None if isinstance(v, tf.experimental.Optional) else v, data
        )
        return step.run(name, data, is_even)

    def on_iterator(iterator: Any) -> Any:
        return on_batch(iterator.get_next())

    of_batch, of_iterator = on_batch, on_iterator
    if not model.run_eagerly:
        of_batch, of_iterator = (
            tf.function(each, reduce_retracing=True, autograph=False)
            for each in (on_batch, on_iterator)
        )

    def function(iterator: Any) -> Any:
        if isinstance(iterator, tf.data.Iterator | tf.distribute.DistributedIterator):
            logs = of_iterator(iterator)
            for _ in range(model.steps_per_execution - 1):
                try:
                    logs = of_iterator(iterator)
                except tf.errors.OutOfRangeError:
                    break
            return logs
        logs = None
        for _, batch in zip(range(model.steps_per_execution), iterator, strict=False):
            logs = of_batch(*split(strategy, batch))
        return logs

    return function


def split(strategy: Any, batch: Any) -> tuple[Any, bool]:
    """Return a batch shared out over the replicas, and whether each has as many examples."""
    replicas, local = replicas_of(strategy), len(strategy.extended.worker_devices)
    batch = tree.map_structure(lambda v: None if v is None else tf.convert_to_tensor(v), batch)
    sizes = {v.shape[0] for v in tree.flatten(batch) if v is not None}

    def part(context: Any) -> Any:
        # The parts of a batch go round the workers, as those of a dataset do.
        worker, own = divmod(context.replica_id_in_sync_group, local)
        place = own * (replicas // local) + worker

        def rows(value: Any) -> Any:
            if value is None:
                return None
            size = -(-value.shape[0] // replicas)
            return value[place * size : (place + 1) * size]

        return tree.map_structure(rows, batch)

    values = strategy.experimental_distribute_values_from_function(part)
    return values, all(size % replicas == 0 for size in sizes)
