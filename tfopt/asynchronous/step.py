"""One step of a worker: its own batch, the gradients of it, and their way to the parameter servers.

Guarantees: the model's own ``train_step`` is what runs. The weights are read when the batch is
there and not before, the state of each of the model's optimizers is read where it is kept when the
gradients are there, and no update is lost (``repairs.lost_updates``). Each step says how many
others have come between its reading of the weights and its own gradient: its staleness; and what
its ``train_step`` says where the model's metrics do not say the same.
"""

from __future__ import annotations

from typing import Any

from tfopt.asynchronous.arrivals import Arrivals, tensors_in, watched
from tfopt.asynchronous.optimizers import optimizers_of, rates_of
from tfopt.repairs.lost_updates import kept_updates

# Each worker draws its random numbers this far behind the one before it.
_DRAWS_APART = 1 << 20


def traced_step(model: Any, iterator_spec: Any, arrived: Any) -> Any:
    """The step as a function of a worker's iterator.

    Args:
        model: A compiled model whose variables and those of its optimizers are all there.
        iterator_spec: The type of the workers' iterators.
        arrived: A variable on a ps that counts the steps.
    """
    import tensorflow as tf
    from keras import tree

    optimizers = optimizers_of(model)
    shared = _shared(model, optimizers)
    # What Keras itself asks for the logs of an epoch.
    said_by_metrics = set(model.get_metrics_result())

    def step(iterator: Any) -> dict[str, Any]:
        worker = tf.distribute.coordinator.experimental_get_current_worker_index()
        batch = next(iterator)
        leaves = [each for each in tree.flatten(batch) if each is not None]
        with (
            tf.control_dependencies(tensors_in(leaves)),
            kept_updates(shared, _settled(optimizers)) as readings,
        ):
            arrivals = Arrivals(arrived)
            readings.take(shared, lambda variable: _offset(tf, variable, worker))
            with watched(list(optimizers.values()), arrivals, readings):
                logs = model.train_step(batch)
            logs = logs if isinstance(logs, dict) else {}
            staleness = arrivals.staleness(list(logs.values()))
        return {
            "worker": tf.cast(worker, tf.int64),
            "examples": tf.cast(_length(tf, leaves[0]), tf.int64),
            "staleness": staleness,
            "logs": {} if set(logs) == said_by_metrics else _numbers(tf, logs),
        }

    return tf.function(step, autograph=False).get_concrete_function(iterator_spec)


def _shared(model: Any, optimizers: dict[str, Any]) -> list[Any]:
    """What is read once in a step and added to. Weights are not: gradients are of variables."""
    apart = rates_of(optimizers)
    for optimizer in optimizers.values():
        apart |= {id(each) for each in getattr(optimizer, "_trainable_variables", ())}
    variables = [
        *model.non_trainable_variables,
        *_metrics_variables(model),
        *(each for optimizer in optimizers.values() for each in optimizer.variables),
    ]
    return list({id(each): each for each in variables if id(each) not in apart}.values())


def _metrics_variables(model: Any) -> list[Any]:
    """Keras leaves out those of a compiled model inside the model."""
    import keras

    models = [each for each in model._flatten_layers() if isinstance(each, keras.Model)]
    return [variable for each in (model, *models) for variable in each.metrics_variables]


def _numbers(tf: Any, logs: dict[str, Any]) -> dict[str, Any]:
    tensors = {name: tf.convert_to_tensor(each) for name, each in logs.items()}
    return {name: each for name, each in tensors.items() if each.shape.rank == 0}


def _settled(optimizers: dict[str, Any]) -> list[Any]:
    """A loss scale is doubled or halved: differences of two workers would make no sense."""
    scales = [each for each in optimizers.values() if hasattr(each, "inner_optimizer")]
    return [variable for each in scales for variable in each._variables]


def _offset(tf: Any, variable: Any, worker: Any) -> Any:
    if variable.name != "seed_generator_state":
        return None
    return tf.cast(tf.stack([tf.zeros_like(worker), worker * _DRAWS_APART]), variable.dtype)


def _length(tf: Any, leaf: Any) -> Any:
    return leaf.dense_shape[0] if isinstance(leaf, tf.SparseTensor) else tf.shape(leaf)[0]
