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
    between devices, and fails for several steps a call (keras#19246).
    """
    model = step.model
    strategy = model.distribute_strategy

    def on_data(data: Any, is_even: bool = True) -> Any:
        data = tree.map_structure(
            lambda v: None if isinstance(v, tf.experimental.Optional) else v, data
        )
        return step.run(name, data, is_even)

    kinds: list[Any] = []  # of logs, once a loop has made them

    def multi_step_on_iterator(iterator: Any) -> Any:
        if model.steps_per_execution == 1:
            return on_data(iterator.get_next())
        if tf.executing_eagerly():
            return _one_by_one(on_data, iterator, model.steps_per_execution)
        return _in_a_loop(on_data, iterator, model.steps_per_execution, kinds)

    on_batch, on_iterator = on_data, multi_step_on_iterator
    if not model.run_eagerly:
        on_batch = tf.function(on_data, reduce_retracing=True, autograph=False)
        on_iterator = tf.function(multi_step_on_iterator, reduce_retracing=True, autograph=False)

    def function(iterator: Any) -> Any:
        if isinstance(iterator, tf.data.Iterator | tf.distribute.DistributedIterator):
            logs = on_iterator(iterator)
            return _value(logs, kinds[0]) if isinstance(logs, tf.Tensor) else logs
        logs = None
        for _, batch in zip(range(model.steps_per_execution), iterator, strict=False):
            logs = on_batch(*split(strategy, batch))
        return logs

    return function


def _one_by_one(on_data: Callable[[Any], Any], iterator: Any, steps: int) -> Any:
    """Take some steps, as far as there is data; return the last one's logs."""
    logs = on_data(iterator.get_next())
    for _ in range(steps - 1):
        optional = iterator.get_next_as_optional()
        if not optional.has_value():
            break
        logs = on_data(optional.get_value())
    return logs


def _in_a_loop(on_data: Callable[[Any], Any], iterator: Any, steps: int, kinds: list[Any]) -> Any:
    """Do the same inside one graph; return the logs as one optional value.

    The step is written into the loop: as a function that a branch calls, it is left with a
    placeholder that nobody feeds.
    """

    def kept(logs: Any) -> Any:
        logs = tree.map_structure(tf.convert_to_tensor, logs)
        kinds[:] = [tree.map_structure(lambda v: tf.TensorSpec(v.shape, v.dtype), logs)]
        return tf.raw_ops.OptionalFromValue(components=tree.flatten(logs))

    def one(number: Any, _: Any, logs: Any) -> Any:
        optional = iterator.get_next_as_optional()
        there = optional.has_value()
        logs = tf.cond(there, lambda: kept(on_data(optional.get_value())), lambda: logs)
        return number + 1, there, logs

    return tf.while_loop(
        lambda number, there, _: tf.logical_and(number < steps, there),
        one,
        (tf.constant(0), tf.constant(True), tf.raw_ops.OptionalNone()),
    )[2]


def _value(logs: Any, kinds: Any) -> Any:
    if not tf.raw_ops.OptionalHasValue(optional=logs):
        raise StopIteration
    flat = tree.flatten(kinds)
    values = tf.raw_ops.OptionalGetValue(
        optional=logs,
        output_types=[each.dtype for each in flat],
        output_shapes=[each.shape for each in flat],
    )
    return tree.pack_sequence_as(kinds, values)


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
