"""Let each metric count the whole batch, while each replica has a part of it.

Keras's metrics add up over the examples: each replica counts its own, and the sums are added when
the result is read. Every other metric gets the rows of all replicas.

Importing this module imports TensorFlow and Keras.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfopt import keras_internals as internals
from tfopt.distribute.whole_batch import (
    all_reduce_sum,
    current_shard,
    drop_padding,
    gather_rows,
    replicas_of,
)


def count_whole_batch(put: internals.Put, metric: Any, own_losses: str) -> None:
    """Replace ``update_state`` of a metric; ``own_losses`` is how numbers of a custom step add up.

    Its result is recorded in the replica's shard.
    """
    plain, result = metric.update_state, metric.result

    def of_mean(values: Any, sample_weight: Any = None) -> Any:
        return plain(*_values_of_mean(tf.convert_to_tensor(values), sample_weight, own_losses))

    def of_sum(values: Any, sample_weight: Any = None) -> Any:
        return plain(_values_of_sum(tf.convert_to_tensor(values), own_losses), sample_weight)

    def of_rows(*args: Any, **kwargs: Any) -> Any:
        return plain(*drop_padding(args), **drop_padding(kwargs))

    def of_all_rows(*args: Any, **kwargs: Any) -> Any:
        return plain(*gather_rows(drop_padding(args)), **gather_rows(drop_padding(kwargs)))

    def recorded_result() -> Any:
        value, shard = result(), current_shard()
        if shard is not None:
            shard.results.append(value)
        return value

    put(metric, "result", recorded_result)
    kind = type(metric).update_state
    if kind is keras.metrics.Mean.update_state:
        put(metric, "update_state", of_mean)
    elif kind is keras.metrics.Sum.update_state:
        put(metric, "update_state", of_sum)
    elif _adds_up(metric):
        put(metric, "update_state", of_rows)
    else:
        put(metric, "update_state", of_all_rows)
        for variable in metric.variables:  # permanently: they are also read between steps
            variable.value._aggregation = tf.VariableAggregation.ONLY_FIRST_REPLICA


def _adds_up(metric: Any) -> bool:
    """Return whether a metric is Keras's, whose state is a sum over the examples."""
    function = internals.function_of(metric)
    parts = [type(metric), *([function] if function is not None else [])]
    return all(part.__module__.startswith("keras.src.") for part in parts)


def _values_of_mean(values: Any, sample_weight: Any, own_losses: str) -> tuple[Any, Any]:
    """Return values and weights whose mean over all replicas is the whole batch's."""
    shard = current_shard()
    if shard is None:
        return values, sample_weight
    if values.shape.rank != 0:
        # The padding of a replica without examples gets the weight 0.
        not_padding = tf.cast(shard.has_examples, values.dtype)
        rows = tf.ones(tf.shape(values)[:1], values.dtype)
        weights = rows if sample_weight is None else sample_weight
        return values, not_padding * tf.cast(weights, not_padding.dtype)
    if shard.loss != "own":
        return values, None if sample_weight is None else shard.examples
    if sample_weight is not None:
        return shard.weigh(values, "sum"), shard.weigh(sample_weight, "sum")
    return all_reduce_sum(shard.weigh(values, own_losses)), None


def _values_of_sum(values: Any, own_losses: str) -> Any:
    """Return values whose sum over all replicas is that of the whole batch."""
    shard = current_shard()
    if shard is None:
        return values
    if values.shape.rank != 0:
        return drop_padding(values)
    if shard.loss != "own":  # equal on all replicas
        return values / replicas_of(tf.distribute.get_strategy())
    return shard.weigh(values, own_losses)
