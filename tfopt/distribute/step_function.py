"""The functions that ``fit`` and ``evaluate`` call with an iterator, for a step on all replicas.

Importing this module imports TensorFlow and Keras.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from keras.src import tree

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
        return step.on_all(name, data, is_even)

    def multi_step_on_iterator(iterator: Any) -> Any:
        logs = on_data(iterator.get_next())
        if model.steps_per_execution == 1:
            return logs
        return _further_steps(on_data, iterator, model.steps_per_execution - 1, logs)

    if not model.run_eagerly:
        on_data = tf.function(on_data, reduce_retracing=True, autograph=False)
        multi_step_on_iterator = tf.function(
            multi_step_on_iterator, reduce_retracing=True, autograph=False
        )

    def function(iterator: Any) -> Any:
        if isinstance(iterator, tf.data.Iterator | tf.distribute.DistributedIterator):
            return multi_step_on_iterator(iterator)
        logs = None
        for _, batch in zip(range(model.steps_per_execution), iterator, strict=False):
            logs = on_data(*_split(strategy, batch))
        return logs

    function.step = step  # type: ignore[attr-defined]
    return function


def _further_steps(on_data: Callable[[Any], Any], iterator: Any, steps: int, logs: Any) -> Any:
    """Take further steps, as far as there is data; return the last one's logs."""
    if tf.executing_eagerly():
        for _ in range(steps):
            optional = iterator.get_next_as_optional()
            if not optional.has_value():
                break
            logs = on_data(optional.get_value())
        return logs

    def one(step: Any, logs: Any, _: Any) -> Any:
        optional = iterator.get_next_as_optional()
        there = optional.has_value()
        logs = tf.cond(there, lambda: on_data(optional.get_value()), lambda: logs)
        return step + 1, logs, there

    return tf.while_loop(
        lambda step, _, there: tf.logical_and(step < steps, there),
        one,
        (tf.constant(0), logs, tf.constant(True)),
        parallel_iterations=1,
    )[1]


def _split(strategy: Any, batch: Any) -> tuple[Any, bool]:
    """Return a batch shared out over the replicas, and whether each has as many examples."""
    replicas = replicas_of(strategy)
    batch = tree.map_structure(lambda v: None if v is None else tf.convert_to_tensor(v), batch)
    sizes = {v.shape[0] for v in tree.flatten(batch) if v is not None}

    def part(context: Any) -> Any:
        place = context.replica_id_in_sync_group

        def rows(value: Any) -> Any:
            if value is None:
                return None
            size = -(-value.shape[0] // replicas)
            return value[place * size : (place + 1) * size]

        return tree.map_structure(rows, batch)

    values = strategy.experimental_distribute_values_from_function(part)
    return values, all(size % replicas == 0 for size in sizes)
