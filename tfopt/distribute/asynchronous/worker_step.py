"""Trace one step of a worker: its own batch, its gradients, and their way to the parameter servers.

The model's own ``train_step`` is what runs. The weights are read when the batch is there and not
before, and the state of each optimizer when the gradients are there.

Importing this module imports TensorFlow and Keras.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras import tree

from tfopt.distribute.asynchronous.lost_updates import Readings, kept_updates
from tfopt.distribute.step import optimizers_of
from tfopt.errors import UserError
from tfopt.hooks import putting
from tfopt.keras_internals import given_as_trainable, layers_of, learning_rate_of


class Arrivals:
    """Count a traced step in ``arrived``, a variable on a ps that all workers share.

    A step counts once, when its first gradients are there.
    """

    def __init__(self, arrived: Any) -> None:
        self._arrived = arrived
        self._begun = arrived.read_value()
        self._before: Any = None

    def note(self) -> None:
        """Note that gradients are there."""
        if tf.compat.v1.get_default_graph() is not self._begun.graph:
            raise UserError(
                "The train_step applies an optimizer in a branch, or in a tf.function of its own.",
                expected="optimizers that are applied in the train_step itself",
                fix="apply it outside of tf.cond and tf.while_loop, and take @tf.function off: the "
                "whole step is compiled",
            )
        if self._before is None:
            self._before = self._arrived.read_value()
            with tf.control_dependencies([self._before]):
                self._arrived.assign_add(1, read_value=False)

    @property
    def staleness(self) -> Any:
        """Return how many steps came between reading the weights and the gradients."""
        if self._before is None:
            raise UserError(
                "The train_step applies none of the model's optimizers.",
                expected="optimizers that the model keeps, whose state can go to the parameter "
                "servers and into the checkpoint",
                fix="keep it as an attribute of the model, or in a list or a dict that is one",
            )
        return self._before - self._begun


def _noting(optimizer: Any, arrivals: Arrivals, readings: Readings) -> Callable[..., Any]:
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
    flat = [part for each in values if each is not None for part in tf.nest.flatten(each, True)]
    return [part for part in flat if tf.is_tensor(part)]


def traced_step(model: Any, iterator_spec: Any, arrived: Any) -> Any:
    """Return the step as a function of a worker's iterator of this type.

    All variables of the model and of its optimizers must be there.
    """
    optimizers = list(optimizers_of(model).values())
    shared = _shared(model, optimizers)
    # What Keras itself asks for the logs of an epoch.
    metric_names = set(model.get_metrics_result())

    def step(iterator: Any) -> dict[str, Any]:
        worker = tf.distribute.coordinator.experimental_get_current_worker_index()
        batch = next(iterator)
        leaves = [each for each in tree.flatten(batch) if each is not None]
        sparse = isinstance(leaves[0], tf.SparseTensor)
        length = leaves[0].dense_shape[0] if sparse else tf.shape(leaves[0])[0]
        with (
            tf.control_dependencies(tensors_in(leaves)),
            kept_updates(shared) as readings,
            putting() as put,
        ):
            arrivals = Arrivals(arrived)
            for optimizer in optimizers:
                put(optimizer, "apply", _noting(optimizer, arrivals, readings))
            logs = model.train_step(batch)
            logs = logs if isinstance(logs, dict) else {}
        return {
            "worker": tf.cast(worker, tf.int64),
            "examples": tf.cast(length, tf.int64),
            "staleness": arrivals.staleness,
            "logs": {} if set(logs) == metric_names else _numbers(logs),
        }

    return tf.function(step, autograph=False).get_concrete_function(iterator_spec)


def _shared(model: Any, optimizers: list[Any]) -> list[Any]:
    """Return what is read once in a step and added to; not weights: gradients are of variables."""
    apart = {id(learning_rate_of(each)) for each in optimizers}
    for optimizer in optimizers:
        apart |= {id(each) for each in given_as_trainable(optimizer)}
    # A model leaves out the metrics of a compiled model inside it.
    models = [each for each in layers_of(model) if isinstance(each, keras.Model)]
    variables = [
        *model.non_trainable_variables,
        *(variable for each in models for variable in each.metrics_variables),
        *(each for optimizer in optimizers for each in optimizer.variables),
    ]
    return list({id(each): each for each in variables if id(each) not in apart}.values())


def _numbers(logs: dict[str, Any]) -> dict[str, Any]:
    tensors = {name: tf.convert_to_tensor(each) for name, each in logs.items()}
    return {name: each for name, each in tensors.items() if each.shape.rank == 0}
