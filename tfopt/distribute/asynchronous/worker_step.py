"""Trace the step of a worker, by the model's ``train_step``.

The weights are read after the batch, and the state of each optimizer after the gradients.

Importing this module imports TensorFlow and Keras.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras import tree

from tfopt.distribute.asynchronous.lost_updates import Readings, adding_updates
from tfopt.distribute.model_parts import optimizers_of
from tfopt.errors import UserError
from tfopt.hooks import putting
from tfopt.keras_internals import given_as_trainable, layers_of, learning_rate_of


class Arrivals:
    """Count a traced step, once its gradients are computed, in a variable shared by all workers."""

    def __init__(self, arrived: Any) -> None:
        self._arrived = arrived
        self._begun = arrived.read_value()
        self._before: Any = None

    def note(self) -> None:
        """Count the step at its first gradients."""
        if tf.compat.v1.get_default_graph() is not self._begun.graph:
            raise UserError(
                "The train_step applies an optimizer in a branch, or in a nested tf.function.",
                expected="optimizers that are applied in the train_step itself",
                fix="apply it outside of tf.cond and tf.while_loop, and remove @tf.function: the "
                "whole step is compiled",
            )
        if self._before is None:
            self._before = self._arrived.read_value()
            with tf.control_dependencies([self._before]):
                self._arrived.assign_add(1, read_value=False)

    def staleness(self) -> Any:
        """Return how many steps came between reading the weights and applying the gradients."""
        if self._before is None:
            raise UserError(
                "The train_step applies none of the model's optimizers.",
                expected="optimizers that are attributes of the model, whose state is on the "
                "parameter servers and in the checkpoint",
                fix="make it an attribute of the model, or put it in a list or dict that is one",
            )
        return self._before - self._begun


def _counted_apply(optimizer: Any, arrivals: Arrivals, readings: Readings) -> Callable[..., Any]:
    plain = optimizer.apply

    def apply(grads: Any, trainable_variables: Any = None) -> Any:
        grads = list(grads)
        with tf.control_dependencies(tensors_in(grads)):
            arrivals.note()
            readings.take(optimizer.variables)
            return plain(grads, trainable_variables)

    return apply


def tensors_in(values: list[Any]) -> list[Any]:
    """Return the tensors of values that may be sparse or None."""
    flat = [part for value in values if value is not None for part in tf.nest.flatten(value, True)]
    return [part for part in flat if tf.is_tensor(part)]


def traced_step(model: Any, iterator_spec: Any, arrived: Any) -> Any:
    """Return the step as a function of a worker's iterator; all variables must be created."""
    optimizers = list(optimizers_of(model).values())
    shared = _shared(model, optimizers)
    metric_names = set(model.get_metrics_result())

    def step(iterator: Any) -> dict[str, Any]:
        worker = tf.distribute.coordinator.experimental_get_current_worker_index()
        batch = next(iterator)
        leaves = [leaf for leaf in tree.flatten(batch) if leaf is not None]
        sparse = isinstance(leaves[0], tf.SparseTensor)
        length = leaves[0].dense_shape[0] if sparse else tf.shape(leaves[0])[0]
        with (
            tf.control_dependencies(tensors_in(leaves)),
            adding_updates(shared) as readings,
            putting() as put,
        ):
            arrivals = Arrivals(arrived)
            for optimizer in optimizers:
                put(optimizer, "apply", _counted_apply(optimizer, arrivals, readings))
            logs = model.train_step(batch)
            logs = logs if isinstance(logs, dict) else {}
        return {
            "worker": tf.cast(worker, tf.int64),
            "examples": tf.cast(length, tf.int64),
            "staleness": arrivals.staleness(),
            "logs": {} if set(logs) == metric_names else _numbers(logs),
        }

    return tf.function(step, autograph=False).get_concrete_function(iterator_spec)


def _shared(model: Any, optimizers: list[Any]) -> list[Any]:
    """Return the shared variables other than weights, which gradients need as variables."""
    excluded = {id(learning_rate_of(optimizer)) for optimizer in optimizers}
    for optimizer in optimizers:
        excluded |= {id(variable) for variable in given_as_trainable(optimizer)}
    # A model leaves out the metrics of a compiled model inside it.
    models = [layer for layer in layers_of(model) if isinstance(layer, keras.Model)]
    variables = [
        *model.non_trainable_variables,
        *(variable for inner in models for variable in inner.metrics_variables),
        *(variable for optimizer in optimizers for variable in optimizer.variables),
    ]
    return list({id(v): v for v in variables if id(v) not in excluded}.values())


def _numbers(logs: dict[str, Any]) -> dict[str, Any]:
    tensors = {name: tf.convert_to_tensor(value) for name, value in logs.items()}
    return {name: value for name, value in tensors.items() if value.shape.rank == 0}
